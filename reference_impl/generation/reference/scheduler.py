"""Who runs in the next step, and who has to wait: admission, chunked prefill, pauses and evictions.

The decisions are Megatron Core's (`schedule_chunked_prefill` of its engine, `update_requests` of its context), so that the
two engines can be held to each other step by step:

* Waiting requests are admitted in order of arrival, each when its whole prompt has blocks; nobody is admitted while a
  request is paused. So nobody can be overtaken for ever: what is ahead of a request is finite and only gets less.
* A request that fills its last block is paused, and goes on in the same step if there is a block for it. If there is none
  for some, the ones paused last give theirs up (they are evicted) until there is one for each that stays.
* An evicted request goes to the front of the queue, and is prefilled again with all its tokens.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from reference_impl.generation.reference.blocks import BlockPool
from reference_impl.generation.reference.request import Request, Span
from reference_impl.generation.rows import Limits


@dataclass(frozen=True)
class Changes:
    """What an update did: requests that are paused now and were not before, and those that lost their blocks."""

    paused: list[Request]
    evicted: list[Request]


class Scheduler:
    """The queue and the batch. `rows` holds paused requests first, then active ones.

    A prompt that is computed in chunks stays at the head of `waiting` until its last chunk, and is in `rows` only during
    the steps that compute one. `max_requests` bounds `rows`. `prefix` finds blocks that a new request can share.
    """

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        max_requests: int,
        prefix: Callable[[Request], tuple[list[int], int | None]],
        fresh: Callable[[list[int]], None],
    ) -> None:
        self.limits, self.pool, self.max_requests = limits, pool, max_requests
        self.waiting: deque[Request] = deque()
        self.rows: list[Request] = []
        self.paused = 0
        self.chunked: Request | None = None
        self._prefix, self._fresh = prefix, fresh
        self._were_paused: set[Request] = set()

    @property
    def requests(self) -> list[Request]:
        """Everyone, running first."""
        return [*self.rows, *(request for request in self.waiting if request not in self.rows)]

    # --- before a step ------------------------------------------------------------------------------------------

    def schedule(self) -> list[Span]:
        """What the next step computes: one token of each active request, then prompts as far as `max_tokens` goes."""
        spans = [Span(request, request.cached, request.cached + 1) for request in self.rows[self.paused :]]
        while self.waiting:
            span = self._next_prefill(self.limits.max_tokens - sum(span.stop - span.start for span in spans))
            if span is None:
                break
            spans.append(span)
            if not span.samples:
                break  # the rest of this prompt comes before anybody else's
        return spans

    def _next_prefill(self, budget: int) -> Span | None:
        """Admit the head of the queue, or the next chunk of it, if there is room; `budget` is in tokens."""
        request, size = self.waiting[0], self.limits.block_size_tokens
        continues = request is self.chunked
        if not continues and (len(self.rows) >= self.max_requests or self.paused):
            return None
        shared, chain = ([], request.chain) if continues else self._prefix(request)
        start = request.cached + len(shared) * size
        missing = _blocks(len(request.tokens), size) - len(request.blocks) - len(shared)
        if self.pool.available - self.pool.idle(shared) < missing:
            return None
        chunk = self._chunk(len(request.tokens) - start, budget)
        if not chunk:
            return None
        stop = start + chunk
        self.pool.share(shared)
        request.blocks += shared
        if shared:
            request.registered = len(shared)
        request.chain = chain
        new = self.pool.allocate(_blocks(stop, size) - len(request.blocks))
        self._fresh(new)
        request.blocks += new
        self.rows.append(request)
        if stop == len(request.tokens):
            self.waiting.popleft()
            self.chunked = None
        else:
            self.chunked = request
        return Span(request, start, stop)

    def _chunk(self, remaining: int, budget: int) -> int:
        """Tokens of a prompt to compute now, 0 for none."""
        # An evicted request may have grown longer than a step: it is cut in any case, or it would wait for ever.
        if not self.limits.chunked_prefill and remaining <= self.limits.max_tokens:
            return remaining if remaining <= budget else 0
        chunk = min(remaining, budget)
        if remaining - chunk == 1 and self.limits.max_tokens > 1:
            chunk -= 1  # as upstream: a last chunk of one token would run in its decode kernel
        return max(chunk, 0)

    # --- after a step -------------------------------------------------------------------------------------------

    def update(self, ended: Collection[Request]) -> Changes:
        """Let the ended requests go, then pause, resume and evict."""
        for request in ended:
            self.release(request)
        self._close_gaps(ended)
        self._pause_full()
        self._resume()
        evicted = self._evict()
        self._resume()
        self._hide_chunked()
        for request in evicted:
            self.waiting.appendleft(request)
        if self.chunked is not None:
            self.waiting.remove(self.chunked)
            self.waiting.appendleft(self.chunked)
        now = set(self.rows[: self.paused])
        paused = [request for request in self.rows[: self.paused] if request not in self._were_paused]
        self._were_paused = now
        return Changes(paused, evicted)

    def _close_gaps(self, ended: Collection[Request]) -> None:
        """The last active requests take the places of those that ended."""
        active = self.rows[self.paused :]
        left = [request for request in active if request not in ended]
        holes = [i for i in range(len(left)) if active[i] in ended]
        movers = [request for request in active[len(left) :] if request not in ended]
        for hole, mover in zip(holes, movers, strict=True):
            active[hole] = mover
        self.rows[self.paused :] = active[: len(left)]

    def _pause_full(self) -> None:
        """Requests whose last block is full, and who need another for their next token, join the paused ones."""
        active = self.rows[self.paused :]
        full = [self._needs_block(request) and request is not self.chunked for request in active]
        count = sum(full)
        stay = [i for i in range(count) if not full[i]]
        go = [i for i in range(count, len(active)) if full[i]]
        for here, there in zip(stay, go, strict=True):
            active[here], active[there] = active[there], active[here]
        self.rows[self.paused :] = active
        self.paused += count

    def _resume(self) -> None:
        """Paused requests go on, the one paused last first, while the blocks they hold and need fit beside the active."""
        room = self.pool.usable - _held(self.rows[self.paused :])
        needs, most = 0, min(self.pool.available, self.max_requests - (len(self.rows) - self.paused))
        resumed: list[Request] = []
        for request in reversed(self.rows[: self.paused]):
            needs += len(request.blocks) + self._needs_block(request)
            if needs > room or len(resumed) >= most:
                break
            resumed.append(request)
        growing = [request for request in resumed if self._needs_block(request)]
        new = self.pool.allocate(len(growing))
        self._fresh(new)
        for request, block in zip(growing, new, strict=True):
            request.blocks.append(block)
        self.paused -= len(resumed)

    def _evict(self) -> list[Request]:
        """The requests paused last lose their blocks, as few as leave a block for each that stays paused."""
        if not self.paused:
            return []
        count = freed = 0
        for request in reversed(self.rows[: self.paused]):
            count += 1
            freed += len(request.blocks)
            if freed >= self.paused - count:
                break
        first, active = self.paused - count, len(self.rows) - self.paused
        evicted = self.rows[first : self.paused]
        for request in evicted:
            self.release(request)
        # As upstream, active and evicted requests trade places, as few as possible.
        moved = min(count, active)
        here = slice(first, first + moved)
        there = slice(len(self.rows) - moved, len(self.rows)) if count < active else slice(self.paused, None)
        self.rows[here], self.rows[there] = self.rows[there], self.rows[here]
        self.rows = [request for request in self.rows if request not in evicted]
        self.paused = first
        return evicted

    def _hide_chunked(self) -> None:
        """A prompt with chunks to come leaves the batch until its next one; the last row takes its place."""
        if self.chunked in self.rows:
            place = self.rows.index(self.chunked)
            self.rows[place] = self.rows[-1]
            self.rows.pop()

    def _needs_block(self, request: Request) -> bool:
        return request.cached == len(request.blocks) * self.limits.block_size_tokens

    # --- at any time between steps ------------------------------------------------------------------------------

    def release(self, request: Request) -> None:
        """The request's blocks go back to the pool; what it had cached is gone."""
        self.pool.release(request.blocks)
        request.blocks, request.cached, request.chain, request.registered = [], 0, None, 0

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and give its blocks back."""
        self.release(request)
        if request in self.rows:
            place = self.rows.index(request)
            self.paused -= place < self.paused
            del self.rows[place]
        if request in self.waiting:
            self.waiting.remove(request)
        if request is self.chunked:
            self.chunked = None
        self._were_paused.discard(request)

    def requeue_all(self) -> None:
        """Everyone gives up their blocks and waits for a prefill: running requests by age, then those that waited."""
        waiting = set(self.waiting)
        running = sorted((request for request in self.rows if request not in waiting), key=lambda request: request.id)
        for request in self.requests:
            self.release(request)
        self.waiting = deque([*running, *self.waiting])
        self.rows, self.paused, self.chunked, self._were_paused = [], 0, None, set()


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _held(requests: list[Request]) -> int:
    return len({block for request in requests for block in request.blocks})
