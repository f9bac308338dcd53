"""`MegatronGeneration`: Megatron Core's dynamic inference engine behind the generation contract."""

import asyncio
import atexit
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reference_impl.config.schema import Recipe
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationError, GenerationInterface, Progress, verify_lengths
from reference_impl.generation.megatron import build
from reference_impl.generation.megatron.drivers import CoordinatorDriver, DirectDriver, Driver
from reference_impl.generation.megatron.requests import Limits, sampling_params, tokens_to_generate, why_refused
from reference_impl.generation.megatron.stopping import StopRule, Stops
from reference_impl.generation.megatron.thread import EngineThread
from reference_impl.generation.megatron.weights import check_update, copy_weights, forget_prefixes
from reference_impl.generation.outputs import Completion, to_output
from reference_impl.models.catalog import Checkpoint, Tokenizer, find_model
from reference_impl.models.gpt import build_gpt_model
from reference_impl.models.llama import LlamaShape


@dataclass(frozen=True)
class _Row:
    """One sequence of a batch that is under way."""

    prompt: list[int]
    limit: int
    stops: Stops


class MegatronGeneration(GenerationInterface):
    """A generation backend on Megatron Core's `DynamicInferenceEngine`.

    `recipe` says everything (`policy.generation` and `policy.generation.mcore_generation_config`). Without `model`, the
    model that `policy.model_name` names is built; with it, and its `shape`, that very `GPTModel` generates: its parameters
    are read where they lie, so what training writes, generation reads. `tokenizer` is only needed for `stop_strings` and
    for the end-of-sequence id that stops a sequence when `stop_token_ids` is null.
    """

    def __init__(
        self, recipe: Recipe, *, model: Any = None, shape: LlamaShape | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        if (model is None) != (shape is None):
            raise ValueError("a shared model needs its shape, and a shape its model: give both or neither")
        self.recipe = recipe
        self.config = recipe.policy.generation
        self.epoch = 0
        self.asleep = True
        self._driver: Driver | None = None
        self._engine: Any = None
        self._under_way: dict[Future[Completion], tuple[int, _Row, str]] = {}
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
            self.asleep = True
        return True

    def suspend(self) -> bool:
        """The same as {py:meth}`finish_generation`, under the engine's name for it."""
        return self.finish_generation()

    def resume(self) -> bool:
        """The same as {py:meth}`prepare_for_generation`, under the engine's name for it."""
        return self.prepare_for_generation()

    def shutdown(self) -> bool:
        """Stop the engine, and in coordinator mode the coordinator's process; requests under way are cancelled."""
        driver, self._driver = self._driver, None
        if driver is not None:
            atexit.unregister(self.shutdown)
            self.asleep = True
            driver.close()
        return True

    # --- weights ------------------------------------------------------------------------------------------------

    def update_weights(self, state_dict: Mapping[str, Tensor] | None, *, epoch: int) -> bool:
        """Put other values into the model's parameters between two engine steps, and stamp `epoch` from there on.

        With `kv_cache_management_mode: recompute` the KV cache of running requests is dropped and computed again by the new
        weights; otherwise it persists. Names and shapes are checked before anything is changed (`ValueError`).
        """
        if epoch < self.epoch:
            raise ValueError(f"epoch {epoch} is older than the current epoch {self.epoch}")
        if state_dict is not None:
            check_update(self.model, {name: tensor.shape for name, tensor in state_dict.items()})
            weights = state_dict

            def change() -> None:
                copy_weights(self.model, weights)
        else:

            def change() -> None:
                pass

        if self._driver is None:
            change()
        else:
            self._driver.update(change, epoch)
        self.epoch = epoch
        return True

    def prepare_refit_info(self, state_dict_info: Mapping[str, tuple[torch.Size, torch.dtype]]) -> bool:
        """Check the announced names and shapes against the model (`ValueError`); values are converted when they arrive."""
        check_update(self.model, {name: size for name, (size, _) in state_dict_info.items()})
        return True

    def invalidate_kv_cache(self) -> bool:
        """Empty the prefix cache; weight updates do so by themselves. Running requests keep their own blocks."""
        return self._engine is not None and forget_prefixes(self._engine)

    # --- generation ---------------------------------------------------------------------------------------------

    def generate(self, data: BatchedDataDict, greedy: bool = False) -> BatchedDataDict:
        """Generate for a whole batch; see {py:meth}`~reference_impl.generation.interfaces.GenerationInterface.generate`."""
        rows, finished = self._rows(data), {}
        for event in self._run(rows, greedy):
            if not isinstance(event, Progress):
                index, completion = event
                finished[index] = completion
        completions = [finished[i] for i in range(len(rows))]
        if completions and all(completion.error for completion in completions):
            raise GenerationError(f"every request of the batch failed; the first: {completions[0].error}")
        return to_output([row.prompt for row in rows], completions)

    def stream(self, data: BatchedDataDict, greedy: bool = False) -> Iterator[Progress | tuple[int, BatchedDataDict]]:
        """Yield (index, one-row output) as sequences finish, and between engine steps a {py:class}`Progress`.

        In direct mode the engine stands still while the caller holds a `Progress`, so an `update_weights` there falls
        exactly between those two steps. In coordinator mode the engine runs on by itself.
        """
        rows = self._rows(data)
        for event in self._run(rows, greedy):
            if isinstance(event, Progress):
                yield event
            else:
                index, completion = event
                yield index, to_output([rows[index].prompt], [completion])

    async def generate_async(
        self, data: BatchedDataDict, greedy: bool = False
    ) -> AsyncIterator[tuple[int, BatchedDataDict]]:
        """Yield (index, one-row output) as sequences finish. Any number may run at once; they share the engine's batch."""
        rows, driver = self._rows(data), self._awake()
        pending, ready = self._submit(driver, rows, greedy)
        while True:
            for index, completion in ready:
                yield index, to_output([rows[index].prompt], [completion])
            if not pending:
                return
            await asyncio.wrap_future(driver.advance())
            ready = self._collect(pending, rows)

    def unfinished(self) -> list[tuple[int, BatchedDataDict]]:
        """(index, one-row output) of every sequence that is under way, as far as it has come; for an interrupted run.

        `errors` says that it was interrupted. Nothing is stopped by this; `shutdown` does that.
        """
        driver = self._awake()
        outputs = []
        for index, row, tag in self._under_way.values():
            completion = replace(driver.so_far(tag, row.prompt), error="interrupted")
            outputs.append((index, to_output([row.prompt], [completion])))
        return outputs

    # --- inside -------------------------------------------------------------------------------------------------

    def _build_model(self, checkpoint: Checkpoint) -> Any:
        impl, scope = build.graph_settings(self.recipe, self.device)
        return build_gpt_model(
            checkpoint.shape,
            checkpoint.read_weights(),
            dtype=build.choose_dtype(self.recipe.policy, self.device),
            device=self.device,
            seed=self.config.seed,
            cuda_graph_impl=impl,
            inference_cuda_graph_scope=scope,
        )

    def _start(self) -> Driver:
        thread = EngineThread()

        async def make() -> tuple[Any, StopRule]:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # the current device is a thread's own
            engine = build.build_engine(self.recipe, self.model, self.shape, self.device)
            return engine, StopRule(engine, self.tokenizer.decode if self.tokenizer is not None else None)

        try:
            self._engine, stop_rule = thread.call(make())
            kind = DirectDriver if self.config.mode == "direct" else CoordinatorDriver
            driver = kind(thread, self._engine, stop_rule)
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
        return Limits.of(self._engine.context, self.shape.vocab_size)

    def _rows(self, data: BatchedDataDict) -> list[_Row]:
        """Take the batch apart; raises what is wrong with the batch as a whole."""
        self._awake()
        verify_lengths(data["input_ids"], data["input_lengths"])
        lengths = data["input_lengths"].tolist()
        own = data.get("stop_strings") or [None] * len(lengths)
        if len(own) != len(lengths):
            raise ValueError(
                f"stop_strings has {len(own)} entries, expected a list for each of {len(lengths)} sequences"
            )
        rows, limits = [], self._limits()
        for ids, length, strings in zip(data["input_ids"].tolist(), lengths, own, strict=True):
            prompt, stops = ids[:length], self._stops(strings or [])
            rows.append(_Row(prompt, tokens_to_generate(prompt, self.config, limits), stops))
        return rows

    def _stops(self, strings: list[str]) -> Stops:
        ids = self.config.stop_token_ids
        if ids is None:  # as NeMo RL reads null: the tokenizer's end of sequence
            eos = self.tokenizer.eos_token_id if self.tokenizer is not None else None
            ids = [] if eos is None else [eos]
        strings = [*(self.config.stop_strings or []), *strings]
        if strings and self.tokenizer is None:
            raise ValueError("stop_strings needs a tokenizer, and none was given")
        return Stops(list(ids), strings)

    def _run(self, rows: list[_Row], greedy: bool) -> Iterator[Progress | tuple[int, Completion]]:
        driver = self._awake()
        start, finished = driver.sampled_tokens, 0
        pending, ready = self._submit(driver, rows, greedy)
        while True:
            yield from ready
            finished += len(ready)
            if not pending:
                return
            yield Progress(driver.sampled_tokens - start, finished)
            driver.advance().result()
            ready = self._collect(pending, rows)

    def _submit(
        self, driver: Driver, rows: list[_Row], greedy: bool
    ) -> tuple[dict["Future[Completion]", int], list[tuple[int, Completion]]]:
        """Queue the rows; returns what is under way, and what is over before it begins."""
        pending: dict[Future[Completion], int] = {}
        ready, limits = [], self._limits()
        for index, row in enumerate(rows):
            if reason := why_refused(row.prompt, self.config, limits):
                ready.append((index, Completion(error=reason)))
            elif row.limit == 0:
                ready.append((index, Completion(truncated=True)))  # the prompt fills the context
            else:
                tag = uuid.uuid4().hex
                params = sampling_params(row.prompt, self.config, limits, stops=row.stops, greedy=greedy, tag=tag)
                future = driver.submit(row.prompt, params)
                pending[future] = index
                self._under_way[future] = (index, row, tag)
        return pending, ready

    def _collect(self, pending: dict["Future[Completion]", int], rows: list[_Row]) -> list[tuple[int, Completion]]:
        """Take what has finished out of `pending`."""
        ready = []
        for future in [future for future in pending if future.done()]:
            index = pending.pop(future)
            del self._under_way[future]
            completion = future.result()
            if completion.error is None:
                row, decode = rows[index], self.tokenizer.decode if self.tokenizer is not None else None
                stopped = row.stops.completed_by(completion.token_ids, decode)
                completion = replace(completion, truncated=not stopped and len(completion.token_ids) == row.limit)
            ready.append((index, completion))
        return ready
