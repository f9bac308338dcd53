"""Tells the staleness tracker what Megatron's engine does, at the moment at which it does it.

Megatron stamps epochs on requests when a control message arrives. Here a KV slot is tagged when a forward pass writes it,
and a token is stamped when it is sampled. Megatron has no events for that, so the methods in which those things happen
are wrapped on the one engine and context that are observed; what they do and return stays theirs.
"""

from collections.abc import Callable
from typing import Any

import torch
from megatron.core.inference.engines.dynamic_engine import EngineState
from megatron.core.inference.inference_request import Status

from reference_impl.generation.megatron.requests import TAG
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.tracker import StalenessTracker


class Stamping:
    """The tracker of one engine, and the records of finished requests until somebody takes them.

    Sampling is told by {py:class}`~reference_impl.generation.megatron.stopping.StopRule`, weight updates by the driver;
    all else is seen here: `_add_request` (admission), `initialize_attention_state` (which positions a forward pass writes
    into which slots), `update_requests` (pauses), `post_process_requests` (evictions and ends), `suspend` and `resume`.
    """

    def __init__(self, engine: Any) -> None:
        self.tracker = StalenessTracker()
        self._engine = engine
        self._finished: dict[str, RequestRecord] = {}
        self._paused: set[int] = set()
        context = engine.context
        _after(engine, "_add_request", self._admitted)
        _after(context, "initialize_attention_state", self._forward)
        _after(context, "update_requests", self._updated)
        _after(engine, "post_process_requests", self._processed)
        _around(engine, "suspend", self._suspend)
        _around(engine, "resume", self._resume)

    def take(self, tag: str) -> RequestRecord | None:
        """The record of the finished request with this tag, once; `None` if it failed."""
        return self._finished.pop(tag, None)

    # --- what the engine has done -------------------------------------------------------------------------------

    def _admitted(self, future: Any, request: Any) -> None:
        # Also called for each request that a resume puts back into the queue.
        if request.request_id not in self.tracker and request.status != Status.FAILED:
            self.tracker.admit(request.request_id, len(request.prompt_tokens))

    def _forward(
        self,
        event: Any,
        *,
        construct_graph_dimensions: Any = None,
        is_expert_parallel_dummy_cuda_graph_step: bool = False,
        **_: Any,
    ) -> None:
        """The step's slots are known, and its forward pass comes next; no weights change between the two."""
        if construct_graph_dimensions is not None or is_expert_parallel_dummy_cuda_graph_step:
            return  # no request of anybody's
        context = self._engine.context
        count = context.active_token_count
        if not count:
            return
        # The bookkeeping lies on the host; for so few numbers NumPy has less to do around each step than PyTorch.
        rows = context.token_to_request_idx.numpy()[:count]
        requests = context.request_ids.numpy()[rows].tolist()
        positions = context.token_to_position_in_request.numpy()[:count]
        blocks = context.token_to_block_idx.numpy()[:count] * context.block_size_tokens
        slots = blocks + context.token_to_local_position_within_kv_block.numpy()[:count]
        if context.enable_prefix_caching and context.num_prefill_requests:
            self._prefix_hits(requests, positions.tolist(), rows.tolist())
        self.tracker.forward(requests, positions, slots)

    def _prefix_hits(self, requests: list[int], positions: list[int], rows: list[int]) -> None:
        """Positions that a prefill leaves out before its first one lie in blocks that are written already."""
        context, size = self._engine.context, self._engine.context.block_size_tokens
        for place, request in enumerate(requests):
            if place and request == requests[place - 1]:
                continue
            cached = self.tracker.cached(request)
            if (first := positions[place]) > cached:
                skipped = torch.arange(cached, first)
                blocks = context.request_to_kv_block_ids[rows[place]][skipped // size].long()
                self.tracker.reuse(request, skipped.numpy(), (blocks * size + skipped % size).numpy())

    def sampled(self, requests: list[int]) -> None:
        """One token was sampled for each of these requests, and is kept."""
        self.tracker.sample(requests)

    def _updated(self, *_: Any, **__: Any) -> None:
        """The context has paused requests and resumed others; `newly_paused_request_ids` also names some of the latter."""
        context = self._engine.context
        paused = set(context.request_ids.numpy()[: context.paused_request_count].tolist())
        for request in paused - self._paused:
            self.tracker.preempt(request)
        self._paused = paused

    def _processed(self, result: Any, request_ids: Any, finished: Any, evicted: Any, *_: Any, **__: Any) -> None:
        for record in result[1]:
            length = len(record[0].prompt_tokens) + sum(len(part.generated_tokens) for part in record.requests)
            tag = getattr(record[0].sampling_params, TAG, "")
            self._finished[tag] = self.tracker.finish(record.request_id, length)
        for request in [] if evicted is None else evicted.tolist():
            self.tracker.evict(request)

    def _suspend(self, suspend: Callable[[], None]) -> None:
        asleep = self._engine.state in (EngineState.SUSPENDED, EngineState.SUSPENDING)
        suspend()
        if not asleep:
            mode = self._engine.context.kv_cache_management_mode.value
            self.tracker.suspend(mode)
            if mode == "recompute":
                self._paused.clear()  # they wait for a prefill now

    def _resume(self, resume: Callable[[], None]) -> None:
        if self.tracker.suspended:
            self.tracker.resume()
        resume()


def _after(owner: Any, name: str, seen: Callable[..., None]) -> None:
    """Call `seen(result, *arguments)` after each call of the method."""
    method = getattr(owner, name)

    def observed(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        seen(result, *args, **kwargs)
        return result

    setattr(owner, name, observed)


def _around(owner: Any, name: str, call: Callable[[Callable[[], None]], None]) -> None:
    """Let `call(method)` call the method."""
    method = getattr(owner, name)
    setattr(owner, name, lambda: call(method))
