"""The engine: one step is schedule, forward, sample, update; everything else happens between two steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference_impl.generation.outputs import Completion
from reference_impl.generation.reference.batch import Batch, make_batch
from reference_impl.generation.reference.blocks import BlockPool
from reference_impl.generation.reference.kv import KVCache
from reference_impl.generation.reference.model import Rope, forward
from reference_impl.generation.reference.request import Request, Span
from reference_impl.generation.reference.sampling import Rule, choose, log_probs_of, uniforms
from reference_impl.generation.reference.scheduler import Scheduler
from reference_impl.generation.reference.weights import Weights
from reference_impl.generation.rows import Limits, Row
from reference_impl.generation.stops import Decode
from reference_impl.platforms.packed import product
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.tracker import CacheMode, StalenessTracker


@dataclass(frozen=True)
class Settings:
    """What an engine is built with besides weights and limits; `seed` is that of all sampling streams."""

    blocks: int
    max_requests: int
    rule: Rule
    seed: int
    cache_mode: CacheMode
    prefix_caching: bool
    reuse_across_updates: bool


class ReferenceEngine:
    """Runs requests over a paged cache; see {py:class}`~reference_impl.generation.stepped.Engine` for its methods.

    After every step and between any two, the blocks that are free, held and reserved are all the blocks there are.
    """

    def __init__(self, weights: Weights, limits: Limits, settings: Settings, decode: Decode | None, epoch: int) -> None:
        self.weights, self.limits, self.settings = weights, limits, settings
        self.tracker = StalenessTracker(epoch)
        self.sampled_tokens = 0
        self.pool = BlockPool(settings.blocks)
        self.cache = KVCache(weights.shape, settings.blocks, limits.block_size_tokens, weights.dtype, weights.device)
        self.scheduler = Scheduler(limits, self.pool, settings.max_requests, self._known_prefix, self.cache.clear)
        self._rope = Rope(weights.shape, limits.max_model_len, weights.dtype, weights.device)
        self._decode = decode
        self._requests: dict[int, Request] = {}
        self._next_id = 0

    # --- requests -----------------------------------------------------------------------------------------------

    def add(self, row: Row, greedy: bool) -> int:
        """Queue a row."""
        number, self._next_id = self._next_id, self._next_id + 1
        request = Request(number, row, greedy, tokens=list(row.prompt))
        if row.prompt_logprobs:
            request.prompt_logprobs = [0.0] * len(row.prompt)
        self._requests[number] = request
        self.scheduler.waiting.append(request)
        self.tracker.admit(number, len(row.prompt))
        return number

    def so_far(self, number: int) -> Completion:
        """What a running request has come to."""
        return self._completion(self._requests[number], self.tracker.so_far(number))

    def abort(self, number: int) -> Completion:
        """End a running request; what it had come to."""
        request = self._requests.pop(number)
        self.scheduler.remove(request)
        return self._completion(request, self.tracker.abort(number))

    # --- a step -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Compute what the scheduler chooses, sample, and end what is finished; nothing to do is no step."""
        spans = self.scheduler.schedule()
        if not spans:
            return []
        weights, cache = self.weights, self.cache
        size = self.limits.block_size_tokens
        batch = make_batch(spans, size, cache.piece, self.pool.reserved, weights.dtype, weights.device)
        self._stamp(batch)
        rows, sampled = self._rows_to_look_at(batch)
        hidden = forward(weights, cache, self._rope, batch, rows)
        for span in spans:
            span.request.cached = span.stop
        done = self._sample(sampled, hidden[: len(sampled)]) if sampled else []
        self._prompt_logprobs(batch, hidden[len(sampled) :])
        ended = {request for request, _ in done}
        for request in self.scheduler.rows[self.scheduler.paused :]:
            self._register(request)
        changes = self.scheduler.update(ended)
        for request in changes.paused:
            self.tracker.preempt(request.id)
        for request in changes.evicted:
            self.tracker.evict(request.id)
        return [(request.id, completion) for request, completion in done]

    def _stamp(self, batch: Batch) -> None:
        """Tell the tracker what this step reads and writes, before it does."""
        for span in batch.spans:
            known = self.tracker.cached(span.request.id)
            if span.start > known:  # blocks that were found in the prefix cache
                at = np.arange(known, span.start)
                size = self.limits.block_size_tokens
                blocks = np.array(span.request.blocks)[at // size]
                self.tracker.reuse(span.request.id, at, blocks * size + at % size)
        counts = [span.stop - span.start for span in batch.spans]
        numbers = np.repeat([span.request.id for span in batch.spans], counts).tolist()
        self.tracker.forward(numbers, batch.host_positions, batch.host_slots)

    def _rows_to_look_at(self, batch: Batch) -> tuple[Tensor, list[Span]]:
        """Rows whose logits are wanted: the last of each span that samples, then those of prompts that asked for theirs."""
        ends = np.cumsum([span.stop - span.start for span in batch.spans])
        sampled = [span for span in batch.spans if span.samples]
        rows = [int(end) - 1 for end, span in zip(ends, batch.spans, strict=True) if span.samples]
        for end, span in zip(ends, batch.spans, strict=True):
            rows += [int(end) - span.stop + position for position in _prompt_positions(span)]
        return torch.tensor(rows, dtype=torch.int64, device=self.weights.device), sampled

    def _sample(self, spans: list[Span], hidden: Tensor) -> list[tuple[Request, Completion]]:
        """Append a token to each span's request; those that this ends, as completions."""
        logits = product(hidden, self.weights.output).float()
        rule, tokens = self.settings.rule, torch.empty(len(spans), dtype=torch.int64, device=hidden.device)
        logprobs = torch.empty(len(spans), dtype=torch.float32, device=hidden.device)
        for greedy in (False, True):
            of_kind = [i for i, span in enumerate(spans) if span.request.greedy is greedy]
            if not of_kind:
                continue
            rows = slice(None) if len(of_kind) == len(spans) else of_kind
            uniform = None if greedy else self._uniforms([spans[i] for i in of_kind])
            tokens[rows], logprobs[rows] = choose(logits[rows], rule, greedy, uniform)
        # The one place where the host waits for the device.
        values = torch.stack([tokens.double(), logprobs.double()]).tolist()
        return self._appended(spans, [int(token) for token in values[0]], values[1])

    def _uniforms(self, spans: list[Span]) -> Tensor:
        drawn = uniforms(self.settings.seed, [span.request.id for span in spans], [span.stop for span in spans])
        return torch.from_numpy(drawn).to(self.weights.device)

    def _appended(
        self, spans: list[Span], tokens: list[int], logprobs: list[float]
    ) -> list[tuple[Request, Completion]]:
        done: list[tuple[Request, Completion]] = []
        kept = []
        for span, token, logprob in zip(spans, tokens, logprobs, strict=True):
            request = span.request
            if not np.isfinite(logprob):
                self._requests.pop(request.id)
                self.forget_prefixes()  # its first chunks may be known already, and hold what is not finite
                error = (
                    f"the logits of token {span.stop} are not finite under the weights of epoch {self.tracker.epoch}"
                )
                done.append((request, self._completion(request, self.tracker.abort(request.id), error)))
                continue
            request.tokens.append(token)
            request.logprobs.append(logprob)
            kept.append(request)
        self.sampled_tokens += len(kept)
        self.tracker.sample([request.id for request in kept])
        for request in kept:
            stopped = request.row.stops.completed_by(request.generated, self._decode)
            if stopped or len(request.generated) == request.row.limit:
                self._requests.pop(request.id)
                record = self.tracker.finish(request.id)
                done.append((request, self._completion(request, record, truncated=not stopped)))
        return done

    def _prompt_logprobs(self, batch: Batch, hidden: Tensor) -> None:
        first = 0
        for span in batch.spans:
            positions = _prompt_positions(span)
            if not positions:
                continue
            request = span.request
            rows = hidden[first : (first := first + len(positions))]
            targets = torch.tensor([request.tokens[p + 1] for p in positions], device=rows.device)
            values = log_probs_of(product(rows, self.weights.output), targets, self.settings.rule, request.greedy)
            assert request.prompt_logprobs is not None
            request.prompt_logprobs[positions[0] + 1 : positions[-1] + 2] = values.tolist()

    def _completion(
        self, request: Request, record: RequestRecord, error: str | None = None, truncated: bool = False
    ) -> Completion:
        return Completion(
            token_ids=request.generated,
            logprobs=list(request.logprobs),
            record=record,
            truncated=truncated,
            error=error,
            prompt_logprobs=request.prompt_logprobs,
        )

    # --- prefixes -----------------------------------------------------------------------------------------------

    def _known_prefix(self, request: Request) -> tuple[list[int], int | None]:
        """Blocks that hold the request's first tokens already, and their name. Its last token is always computed."""
        if not self.settings.prefix_caching:
            return [], None
        size = self.limits.block_size_tokens
        most = 0 if request.row.prompt_logprobs else (len(request.tokens) - 1) // size
        return self.pool.lookup(self._root, request.tokens, size, most)

    @property
    def _root(self) -> int:
        """Where prefixes begin: the same for all epochs, or one for each, so that no other epoch's are found."""
        return -1 if self.settings.reuse_across_updates else -2 - self.tracker.epoch

    def _register(self, request: Request) -> None:
        """Make the blocks known that this step has filled."""
        size = self.limits.block_size_tokens
        while request.chain is not None and (request.registered + 1) * size <= request.cached:
            start = request.registered * size
            tokens = tuple(request.tokens[start : start + size])
            request.chain = self.pool.register(request.chain, tokens, request.blocks[request.registered])
            request.registered += 1

    def forget_prefixes(self) -> bool:
        """Let nothing that was written before be found again; returns whether there is a prefix cache."""
        self.pool.forget_prefixes()
        for request in self.scheduler.requests:
            request.chain = None
        return self.settings.prefix_caching

    # --- the whole engine ---------------------------------------------------------------------------------------

    def update(self, state_dict: Mapping[str, Tensor] | None, epoch: int) -> None:
        """Other weights from the next step on; what they do to the cache is `cache_mode`'s and the prefix cache's."""
        self.weights.update(state_dict)
        recompute = self.settings.cache_mode == "recompute" and not self.tracker.suspended
        if recompute:
            self._drop_cache()
        self.tracker.weights_changed(epoch)
        if recompute:
            self.tracker.resume()
        if not self.settings.reuse_across_updates:
            self.forget_prefixes()

    def suspend(self) -> None:
        """Sleep: the cache stays, is put away, or is dropped."""
        mode = self.settings.cache_mode
        if mode == "offload":
            held = {block for request in self.scheduler.requests for block in request.blocks}
            self.cache.offload(sorted(held | self.pool.known))
            self.tracker.suspend(mode)
        elif mode == "recompute":
            self._drop_cache()
            self.cache.free()
        else:
            self.tracker.suspend(mode)

    def resume(self) -> None:
        """Wake, with the cache as it was or an empty one."""
        if self.settings.cache_mode != "persist":
            self.cache.restore()
        self.tracker.resume()

    def close(self) -> None:
        """Let the memory go."""
        self.cache.close()
        self._requests.clear()

    def _drop_cache(self) -> None:
        self.forget_prefixes()
        self.scheduler.requeue_all()
        self.tracker.suspend("recompute")


def _prompt_positions(span: Span) -> list[int]:
    """Positions of a span whose logits say how likely the prompt's next token was, where that was asked for."""
    if not span.request.row.prompt_logprobs:
        return []
    return list(range(span.start, min(span.stop, span.request.prompt_length - 1)))
