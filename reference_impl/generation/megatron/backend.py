"""`MegatronGeneration`: Megatron Core's dynamic inference engine behind the generation contract."""

import asyncio
import atexit
import functools
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import Recipe
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.devices import choose_dtype
from reference_impl.generation.interfaces import GenerationError, Progress
from reference_impl.generation.megatron import build
from reference_impl.generation.megatron.drivers import CoordinatorDriver, DirectDriver, Driver
from reference_impl.generation.megatron.requests import limits_of, sampling_params
from reference_impl.generation.megatron.stamping import Stamping
from reference_impl.generation.megatron.stopping import StopRule
from reference_impl.generation.megatron.thread import EngineThread
from reference_impl.generation.megatron.weights import forget_prefixes
from reference_impl.generation.outputs import Completion, to_output
from reference_impl.generation.rows import Limits, Row, rows_of, why_refused
from reference_impl.generation.rowwise import RowwiseGeneration
from reference_impl.generation.stops import Decode, stops_for
from reference_impl.generation.updates import check_epoch, check_finite, check_shapes, copy_weights, shapes_of
from reference_impl.models.catalog import Checkpoint, Tokenizer, find_model
from reference_impl.models.gpt import build_gpt_model
from reference_impl.models.llama import LlamaShape
from reference_impl.platforms.packed import drop_packed, keep_packed
from reference_impl.staleness.tracker import StalenessTracker

REPLY_S = 0.1
"""Longer than a finished sequence takes from the engine through the coordinator to its client."""


@dataclass
class _Batch:
    """A batch under way: rows in the engine by index, and (index, completion) in the order in which they finished."""

    rows: list[Row]
    running: set[int] = field(default_factory=set)
    finished: "SimpleQueue[tuple[int, Future[Completion]]]" = field(default_factory=SimpleQueue)


class MegatronGeneration(RowwiseGeneration):
    """A generation backend on Megatron Core's `DynamicInferenceEngine`.

    `recipe` says everything (`policy.generation` and `policy.generation.mcore_generation_config`). Without `model`, the
    model that `policy.model_name` names is built; with it, and its `shape`, that very `GPTModel` generates: its parameters
    are read where they lie, so what training writes, generation reads. `tokenizer` is only needed for `stop_strings` and
    for the end-of-sequence id that stops a sequence when `stop_token_ids` is null.
    """

    does_not_claim: ClassVar[dict[str, str]] = {
        "exact-admission": "the engine reserves a slot for the last sampled token too",
        "prompt-logprobs": "they are not read off the engine",
        "own-streams": "the engine samples a batch from one random stream",
        "finite-logits": "the engine samples from whatever logits there are",
    }
    """Features of the conformance suite that this backend does without, and why."""

    def __init__(
        self, recipe: Recipe, *, model: Any = None, shape: LlamaShape | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        if (model is None) != (shape is None):
            raise ValueError("a shared model needs its shape, and a shape its model: give both or neither")
        self.recipe = recipe
        self.config = recipe.policy.generation
        if self.config.reuse_across_updates:
            raise ConfigError(
                "policy.generation.reuse_across_updates: true, but the engine of backend megatron reports no epoch of its "
                "own for a prefix that is used again; write false, or backend: reference"
            )
        self.epoch = 0
        self.asleep = True
        self._driver: Driver | None = None
        self._engine: Any = None
        self._batches: list[_Batch] = []
        checkpoint = None if model is not None else find_model(recipe.policy.model_name)
        self.tokenizer = tokenizer if tokenizer or checkpoint is None else checkpoint.read_tokenizer()
        if self.config.stop_strings and self.tokenizer is None:
            raise ValueError("policy.generation.stop_strings needs a tokenizer, and none was given")
        self.device = build.choose_device(recipe.policy)
        if checkpoint is not None:
            self.model, self.shape = self._build_model(checkpoint), checkpoint.shape
        else:
            assert shape is not None
            self.model, self.shape = model, shape

    # --- life ---------------------------------------------------------------------------------------------------

    def prepare_for_generation(self) -> bool:
        """Build the engine on the first call, wake it on later ones; a running engine is left alone."""
        if not self.asleep:
            return True
        keep_packed(self.model)
        if self._driver is None:
            self._driver = self._start()
            self._driver.update(lambda: None, self.epoch)
        else:
            self.model.eval()
            self._driver.resume()
        self.asleep = False
        return True

    def finish_generation(self) -> bool:
        """Suspend the engine; its flag that the process is in inference mode goes down, so the model can train."""
        if self._driver is not None and not self.asleep:
            self._driver.suspend()
            drop_packed(self.model)  # what changes the weights now need not tell
            self.asleep = True
        return True

    def shutdown(self) -> bool:
        """Stop the engine, and in coordinator mode the coordinator's process; requests under way are cancelled."""
        driver, self._driver = self._driver, None
        if driver is not None:
            atexit.unregister(self.shutdown)
            self.asleep = True
            self._batches.clear()
            drop_packed(self.model)
            driver.close()
        return True

    # --- weights ------------------------------------------------------------------------------------------------

    def update_weights(self, state_dict: Mapping[str, Tensor] | None, *, epoch: int) -> bool:
        """Put other values into the model's parameters between two engine steps, and stamp `epoch` from there on.

        With `kv_cache_management_mode: recompute` the KV cache of running requests is dropped and computed again by the new
        weights; otherwise it persists. Names, shapes and values are checked before anything is changed (`ValueError`).
        """
        check_epoch(epoch, self.epoch)
        if state_dict is not None:
            check_shapes(shapes_of(self.model), {name: tensor.shape for name, tensor in state_dict.items()})
            check_finite(state_dict)

        def change() -> None:
            if state_dict is not None:
                copy_weights(self.model, state_dict)
            if not self.asleep:
                keep_packed(self.model)

        if self._driver is None:
            change()
        else:
            self._driver.update(change, epoch)
        self.epoch = epoch
        return True

    def prepare_refit_info(self, state_dict_info: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
        """Check the announced names and shapes against the model (`ValueError`); values are converted when they arrive."""
        check_shapes(shapes_of(self.model), {name: size for name, (size, _) in state_dict_info.items()})
        return True

    def invalidate_kv_cache(self) -> bool:
        """Empty the prefix cache; weight updates do so by themselves. Running requests keep their own blocks."""
        return self._engine is not None and forget_prefixes(self._engine)

    # --- generation ---------------------------------------------------------------------------------------------

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled since the engine was built, over all batches."""
        return self._driver.sampled_tokens if self._driver is not None else 0

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        """Yield (index, one-row output) as sequences finish. Any number may run at once; they share the engine's batch."""
        driver, rows = self._awake(), self._rows(data)
        batch, ready = self._submit(driver, rows, greedy)
        while True:
            for index, completion in ready:
                yield index, to_output([rows[index].prompt], [completion])
            if not batch.running:
                return
            await self._shared.wait(lambda: asyncio.wrap_future(driver.advance()))
            ready = self._collect(batch)

    def unfinished(self) -> list[tuple[int, BatchedDataDict]]:
        """(index, one-row output) of every sequence that nobody has been given yet, as far as it has come.

        For an interrupted run: `errors` says so of those that the engine still works on. Nothing is stopped by this;
        `shutdown` does that.
        """
        driver, found = self._awake(), []
        for batch in list(self._batches):
            so_far = {i: driver.so_far(batch.rows[i].tag, batch.rows[i].prompt) for i in sorted(batch.running)}
            if None in so_far.values():
                time.sleep(REPLY_S)  # the engine is done with it, and its reply is on the way through the coordinator
            ready = self._collect(batch)
            for index in sorted(batch.running):
                ready.append((index, replace(so_far[index] or Completion(), error="interrupted")))
            found += [(index, to_output([batch.rows[index].prompt], [completion])) for index, completion in ready]
        return found

    @property
    def tracker(self) -> StalenessTracker:
        """What tags the KV slots of the running engine; `follow` of `reference_impl.staleness.events` shows its events."""
        return self._awake().stamping.tracker

    # --- inside -------------------------------------------------------------------------------------------------

    def _build_model(self, checkpoint: Checkpoint) -> Any:
        impl, scope = build.graph_settings(self.recipe, self.device)
        return build_gpt_model(
            checkpoint.shape,
            checkpoint.read_weights(),
            dtype=choose_dtype(self.recipe.policy, self.device),
            device=self.device,
            seed=self.config.seed,
            cuda_graph_impl=impl,
            inference_cuda_graph_scope=scope,
        )

    def _start(self) -> Driver:
        thread = EngineThread()

        async def make() -> tuple[Any, StopRule, Stamping]:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # the current device is a thread's own
            engine = build.build_engine(self.recipe, self.model, self.shape, self.device)
            stamping = Stamping(engine)
            return engine, StopRule(engine, self._decode, stamping.sampled), stamping

        try:
            self._engine, stop_rule, stamping = thread.call(make())
            kind = DirectDriver if self.config.mode == "direct" else CoordinatorDriver
            driver = kind(thread, self._engine, stop_rule, stamping)
        except BaseException:
            thread.stop()
            raise
        atexit.register(self.shutdown)
        return driver

    def _awake(self) -> Driver:
        if self._driver is None or self.asleep:
            raise GenerationError("the engine is asleep: call prepare_for_generation first")
        return self._driver

    def _limits(self) -> Limits:
        return limits_of(self._engine.context, self.shape.vocab_size)

    def _rows(self, data: BatchedDataDict) -> list[Row]:
        self._awake()
        if any(data.get("prompt_logprobs") or []):
            raise ValueError("prompt_logprobs: this backend does not compute them; the reference backend does")
        return rows_of(
            data, self.config, self._limits(), lambda strings: stops_for(self.config, self.tokenizer, strings)
        )

    def _run(self, rows: list[Row], greedy: bool) -> Iterator[Progress | tuple[int, Completion]]:
        driver = self._awake()
        start, finished = driver.sampled_tokens, 0
        batch, ready = self._submit(driver, rows, greedy)
        while True:
            yield from ready
            finished += len(ready)
            if not batch.running:
                return
            yield Progress(driver.sampled_tokens - start, finished)
            driver.advance().result()
            ready = self._collect(batch)

    def _submit(self, driver: Driver, rows: list[Row], greedy: bool) -> tuple[_Batch, list[tuple[int, Completion]]]:
        """Queue the rows: what is under way, and what is over before it begins."""
        batch, ready, limits = _Batch(rows), [], self._limits()
        for index, row in enumerate(rows):
            if reason := why_refused(row.prompt, self.config, limits):
                ready.append((index, Completion(error=reason)))
            elif row.limit == 0:
                ready.append((index, Completion(truncated=True)))  # the prompt fills the context
            else:
                batch.running.add(index)
                future = driver.submit(row.prompt, sampling_params(row, self.config, greedy=greedy))
                future.add_done_callback(functools.partial(_note, batch, index))
        if batch.running:
            self._batches.append(batch)
        return batch, ready

    def _collect(self, batch: _Batch) -> list[tuple[int, Completion]]:
        """What has finished since the last look, in the order in which it did."""
        ready = []
        while not batch.finished.empty():
            index, future = batch.finished.get()
            batch.running.discard(index)
            completion = future.result()
            if completion.error is None:
                row = batch.rows[index]
                stopped = row.stops.completed_by(completion.token_ids, self._decode)
                completion = replace(completion, truncated=not stopped and len(completion.token_ids) == row.limit)
            ready.append((index, completion))
        if not batch.running and batch in self._batches:
            self._batches.remove(batch)
        return ready

    @property
    def _decode(self) -> Decode | None:
        return self.tokenizer.decode if self.tokenizer is not None else None


def _note(batch: _Batch, index: int, future: "Future[Completion]") -> None:
    batch.finished.put((index, future))
