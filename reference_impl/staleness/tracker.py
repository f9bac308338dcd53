"""Tags KV slots with the epoch that wrote them, and makes a record of each request from what an engine does.

A slot is the place of one position's keys and values in the paged cache (block times block size plus offset). The tag
belongs to the slot and not to the request, so that queueing, chunked prefill, prefix hits, eviction and suspends need
no rules of their own. Stamps are made at the forward pass and at the sampling, never when a control message arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from reference_impl.staleness.epochs import MISSING, EpochRuns
from reference_impl.staleness.records import RequestRecord, Status

Request = int | str
"""A request's name in its engine."""

Slots = Sequence[int] | np.ndarray
"""Places in the KV cache, one for each position: any numbers of 0 or more."""

CacheMode = Literal["persist", "offload", "recompute"]
"""What a suspend does to the cache."""

CACHE_MODES = ("persist", "offload", "recompute")
ASK = -2  # in `_oldest`: shared slots were rewritten or released, so look at every slot once more
NOTHING = np.iinfo(np.int64).max  # in `_oldest`: nothing is cached


@dataclass
class _Live:
    """What is kept of a running request besides its row in the arrays."""

    row: int
    prompt_length: int
    admission_epoch: int
    policy: list[tuple[int, int | None]]
    attended: list[tuple[int, int | None]] = field(default_factory=lambda: [(0, None)])
    num_evictions: int = 0
    num_preemptions: int = 0
    num_recomputes: int = 0
    prefix_cached_tokens: int = 0


class StalenessTracker:
    """The epochs of every running request's tokens, told event by event.

    An engine calls `admit` when a request comes; `reuse` and `forward` when a step reads cached positions and writes
    new ones; `sample` when tokens are sampled from that step; `preempt`, `evict` and `release` when blocks change hands;
    `weights_changed`, `suspend` and `resume` when the whole engine changes; and `finish` or `abort`, which return the
    record. Each raises `ValueError`, in one line, for an event that cannot have happened.

    `epoch` is that of the weights loaded first. A step costs a few array operations over its tokens, whatever the
    context's length.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = 0
        self.suspended = False
        self._live: dict[Request, _Live] = {}
        self._free_rows: list[int] = []
        # One row a running request; arrays grow as rows, positions and slots come up.
        self._length = np.zeros(0, np.int64)  # tokens in all
        self._cached = np.zeros(0, np.int64)  # leading positions with keys and values
        self._oldest = np.zeros(0, np.int64)  # oldest epoch among them, or ASK, MISSING, NOTHING
        self._logits = np.zeros((0, 2), np.int64)  # of the last token's pass: its epoch, the oldest it attended to
        self._seen = np.zeros((0, 2), np.int64)  # policy and attended epoch of the last sampled token
        self._slots = np.zeros((0, 0), np.int64)  # [row, position]
        self._tag = np.zeros(0, np.int64)  # [slot]
        self._holders = np.zeros(0, np.int64)  # [slot]: positions of running requests that lie there
        self.weights_changed(epoch)

    # --- the engine ---------------------------------------------------------------------------------------------

    def weights_changed(self, epoch: int) -> None:
        """Other weights are loaded. Epochs never fall; the same epoch once more changes nothing."""
        if isinstance(epoch, bool) or not isinstance(epoch, int | np.integer) or epoch < 0:
            raise ValueError(f"epoch must be an integer of 0 or more, got {epoch!r}")
        if epoch < self.epoch:
            raise ValueError(f"epoch {epoch} is older than the current epoch {self.epoch}")
        self.epoch = int(epoch)

    def suspend(self, mode: CacheMode) -> None:
        """The engine sleeps. `persist` and `offload` bring the cache back as it was; `recompute` drops all of it."""
        if mode not in CACHE_MODES:
            raise ValueError(f"mode: expected one of {', '.join(CACHE_MODES)}, got {mode!r}")
        if self.suspended:
            raise ValueError("suspended already")
        self.suspended = True
        if mode == "recompute":
            for request in self._live.values():
                request.num_recomputes += bool(self._cached[request.row])
                self._forget_cache(request.row)
            self._tag[:] = MISSING

    def resume(self) -> None:
        """The engine wakes."""
        if not self.suspended:
            raise ValueError("resumed without being suspended")
        self.suspended = False

    def release(self, slots: Slots) -> None:
        """What lies in these slots is gone. An engine that keeps freed blocks for prefix hits releases them later."""
        at = np.asarray(slots, np.int64)
        self._room_for_slots(at)
        self._tag[at] = MISSING
        if self._holders[at].any():
            self._oldest[self._oldest != NOTHING] = ASK

    # --- a request ----------------------------------------------------------------------------------------------

    def __contains__(self, request: Request) -> bool:
        return request in self._live

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live)

    def admit(self, request: Request, prompt_length: int) -> None:
        """A request comes, with a prompt of `prompt_length` tokens. Its name is free again once it has ended."""
        if request in self._live:
            raise ValueError(f"request {request!r} is running already")
        if prompt_length < 1:
            raise ValueError(f"request {request!r}: prompt_length must be 1 or more, got {prompt_length}")
        row = self._free_row()
        self._length[row], self._cached[row], self._oldest[row] = prompt_length, 0, NOTHING
        self._seen[row] = self.epoch, MISSING
        self._live[request] = _Live(row, prompt_length, self.epoch, [(0, self.epoch)])

    def cached(self, request: Request) -> int:
        """How many leading positions of the request have keys and values."""
        return int(self._cached[self._of(request).row])

    def reuse(self, request: Request, positions: Slots, slots: Slots) -> None:
        """A prefix hit: the request's `positions`, next to be cached, lie in `slots` that are written already."""
        live, at, into = self._of(request), np.asarray(positions, np.int64), np.asarray(slots, np.int64)
        if len(at) != len(into):
            raise ValueError(f"{len(at)} positions and {len(into)} slots; expected as many of each")
        if len(at) and at.max() >= self._length[live.row] - 1:
            raise ValueError(
                f"request {request!r}: its last token must go through a forward pass, and cannot be reused"
            )
        rows = np.full(len(at), live.row)
        again = self._checked_rows([request] * len(at), rows, at)
        self._room_for_slots(into)
        self._unplace(rows[again], at[again])
        self._place(rows, at, into)
        self._oldest[live.row] = ASK
        live.prefix_cached_tokens += len(at)

    def forward(self, requests: Sequence[Request], positions: Slots, slots: Slots) -> None:
        """One forward pass: row i reads position `positions[i]` of `requests[i]` and writes into `slots[i]`.

        Rows of one request stand together, positions rising by one, none left out before them; a position may be
        computed again. All three are `[rows]`.
        """
        if self.suspended:
            raise ValueError("a forward pass in a suspended engine")
        rows = self._rows(requests)
        at, into = np.asarray(positions, np.int64), np.asarray(slots, np.int64)
        if not len(rows) == len(at) == len(into):
            raise ValueError(
                f"{len(rows)} requests, {len(at)} positions and {len(into)} slots; expected as many of each"
            )
        if not len(rows):
            return
        again = self._checked_rows(requests, rows, at)
        self._room_for_slots(into)
        if again.any():
            self._unplace(rows[again], at[again])
            self._oldest[rows[again]] = ASK
        tags = self._tag[into]
        if ((tags != self.epoch) & (self._holders[into] > 0)).any():
            self._oldest[self._oldest != NOTHING] = ASK  # other requests read these slots and now find newer content
        self._tag[into] = self.epoch
        self._place(rows, at, into)
        for row in set(rows[self._oldest[rows] == ASK].tolist()):
            self._oldest[row] = self._tag[self._slots[row, : self._cached[row]]].min()  # MISSING, if any is
        self._oldest[rows] = np.minimum(self._oldest[rows], self.epoch)
        done = rows[at == self._length[rows] - 1]
        self._logits[done, 0] = self.epoch
        self._logits[done, 1] = self._oldest[done]

    def sample(self, requests: Sequence[Request]) -> None:
        """One token was sampled for each of `requests`, from the forward pass over its last token."""
        rows = self._rows(requests)
        if len(set(requests)) < len(requests):
            twice = next(request for index, request in enumerate(requests) if request in requests[:index])
            raise ValueError(f"request {twice!r}: sampled twice from one forward pass")
        start = self._length[rows]
        if (self._cached[rows] != start).any():
            wrong = int(np.flatnonzero(self._cached[rows] != start)[0])
            raise ValueError(
                f"request {requests[wrong]!r}: sampled after {start[wrong]} tokens, of which "
                f"{self._cached[rows[wrong]]} went through a forward pass"
            )
        epochs = self._logits[rows]
        for index in np.flatnonzero((epochs != self._seen[rows]).any(axis=1)):
            live, (policy, attended) = self._live[requests[int(index)]], epochs[index].tolist()
            live.policy.append((int(start[index]), policy))
            live.attended.append((int(start[index]), None if attended == MISSING else attended))
        self._seen[rows] = epochs
        self._length[rows] += 1

    def preempt(self, request: Request) -> None:
        """The request is paused and keeps its slots."""
        self._of(request).num_preemptions += 1

    def evict(self, request: Request) -> None:
        """The request's slots are taken away; it will be prefilled again."""
        live = self._of(request)
        live.num_evictions += 1
        self._forget_cache(live.row)

    def finish(self, request: Request, length: int | None = None) -> RequestRecord:
        """The request has ended with `length` tokens (default: all), for example cut before a stop string."""
        return self._end(request, length, "finished")

    def abort(self, request: Request, length: int | None = None) -> RequestRecord:
        """The request was given up; its record holds what it had come to."""
        return self._end(request, length, "aborted")

    def so_far(self, request: Request, length: int | None = None) -> RequestRecord:
        """The record as `abort` would make it, of a request that goes on."""
        return self._record(request, length, "aborted")

    # --- inside -------------------------------------------------------------------------------------------------

    def _of(self, request: Request) -> _Live:
        try:
            return self._live[request]
        except KeyError:
            raise ValueError(f"request {request!r} is not running") from None

    def _rows(self, requests: Sequence[Request]) -> np.ndarray:
        try:
            return np.array([self._live[request].row for request in requests], np.int64)
        except KeyError as error:
            raise ValueError(f"request {error.args[0]!r} is not running") from None

    def _checked_rows(self, requests: Sequence[Request], rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Which rows compute a cached position again; raises for a position that leaves a hole or has no token."""
        cached = self._cached[rows]
        goes_on = rows[1:] == rows[:-1]
        begins = [0, *(1 + np.flatnonzero(~goes_on)).tolist()] if len(rows) else []
        if len({int(rows[i]) for i in begins}) < len(begins):
            again = next(requests[i] for n, i in enumerate(begins) if rows[i] in rows[begins[:n]])
            raise ValueError(f"request {again!r}: its rows must stand together")
        if (jumps := goes_on & (at[1:] != at[:-1] + 1)).any():
            i = int(np.flatnonzero(jumps)[0])
            raise ValueError(f"request {requests[i]!r}: position {at[i + 1]} after {at[i]}; positions must rise by one")
        reachable = (at >= 0) & (at <= cached)
        reachable[1:] |= goes_on
        if not reachable.all():
            i = int(np.flatnonzero(~reachable)[0])
            raise ValueError(
                f"request {requests[i]!r}: position {at[i]} leaves a hole after {cached[i]} cached positions"
            )
        if (past := at >= self._length[rows]).any():
            i = int(np.flatnonzero(past)[0])
            raise ValueError(f"request {requests[i]!r}: position {at[i]} is past its {self._length[rows[i]]} tokens")
        if len(at) and (width := int(at.max()) + 1) > self._slots.shape[1]:
            grown = np.full((self._slots.shape[0], max(width, 2 * self._slots.shape[1])), MISSING, np.int64)
            grown[:, : self._slots.shape[1]] = self._slots
            self._slots = grown
        return at < cached

    def _place(self, rows: np.ndarray, at: np.ndarray, into: np.ndarray) -> None:
        """Note where positions lie from now on."""
        self._slots[rows, at] = into
        np.add.at(self._holders, into, 1)
        np.maximum.at(self._cached, rows, at + 1)

    def _unplace(self, rows: np.ndarray, at: np.ndarray) -> None:
        """Note that positions lie no longer where they did."""
        np.subtract.at(self._holders, self._slots[rows, at], 1)

    def _forget_cache(self, row: int) -> None:
        held = self._slots[row, : self._cached[row]]
        np.subtract.at(self._holders, held, 1)
        self._cached[row], self._oldest[row] = 0, NOTHING

    def _free_row(self) -> int:
        if not self._free_rows:
            rows = len(self._length)
            more = max(8, rows)
            self._free_rows = list(range(rows + more - 1, rows - 1, -1))
            for name in ("_length", "_cached", "_oldest", "_logits", "_seen", "_slots"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros((more, *array.shape[1:]), np.int64)]))
        return self._free_rows.pop()

    def _room_for_slots(self, slots: np.ndarray) -> None:
        if not len(slots):
            return
        if slots.min() < 0:
            raise ValueError(f"slot must be 0 or more, got {slots.min()}")
        if (most := int(slots.max()) + 1) > len(self._tag):
            more = max(most, 2 * len(self._tag)) - len(self._tag)
            self._tag = np.concatenate([self._tag, np.full(more, MISSING, np.int64)])
            self._holders = np.concatenate([self._holders, np.zeros(more, np.int64)])

    def _end(self, request: Request, length: int | None, status: Status) -> RequestRecord:
        record = self._record(request, length, status)
        live = self._live.pop(request)
        self._forget_cache(live.row)
        self._free_rows.append(live.row)
        return record

    def _record(self, request: Request, length: int | None, status: Status) -> RequestRecord:
        live = self._of(request)
        row, total = live.row, int(self._length[live.row])
        length = total if length is None else length
        if not live.prompt_length <= length <= total:
            raise ValueError(
                f"request {request!r}: length {length} does not lie between its prompt's {live.prompt_length} tokens "
                f"and its {total}"
            )
        policy = EpochRuns.from_boundaries(live.policy, length)
        cached = min(int(self._cached[row]), length)
        kv = EpochRuns.from_tokens(self._tag[self._slots[row, :cached]]).append(None, length - cached)
        if length == total > max(cached, live.prompt_length):  # sampled last, and not read by any pass
            kv = kv.truncate(length - 1).append(policy.runs[-1][1])
        return RequestRecord(
            request=request,
            policy_epoch=policy,
            kv_cache_epoch=kv,
            oldest_attended_kv_epoch=EpochRuns.from_boundaries(live.attended, length),
            sampled=((live.prompt_length, length),) if length > live.prompt_length else (),
            num_evictions=live.num_evictions,
            num_preemptions=live.num_preemptions,
            num_recomputes=live.num_recomputes,
            prefix_cached_tokens=live.prefix_cached_tokens,
            admission_epoch=live.admission_epoch,
            completion_epoch=self.epoch,
            status=status,
        )
