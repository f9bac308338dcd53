"""What an engine knows about one request's tokens: three epochs a token, and counts of what happened to its cache.

A record says nothing about training: which step consumes it, and how stale it is then, is `consumption`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from reference_impl.staleness.epochs import EpochRuns

Spans = tuple[tuple[int, int], ...]
"""`(start, stop)` of tokens, rising, stop exclusive."""

Status = Literal["finished", "aborted", "failed"]
"""How a request ended."""

STATUSES: tuple[Status, ...] = ("finished", "aborted", "failed")
EPOCHS = ("policy_epoch", "kv_cache_epoch", "oldest_attended_kv_epoch")
COUNTS = ("num_evictions", "num_preemptions", "num_recomputes", "prefix_cached_tokens")


class Segment(NamedTuple):
    """Neighbouring sampled tokens with the same three epochs; `None` where an epoch is not known."""

    policy: int | None
    kv: int | None
    attended: int | None
    tokens: int


@dataclass(frozen=True)
class RequestRecord:
    """The epochs of one request's whole sequence, prompt then generated, position 0 first.

    `request`
    : The request's name in its engine.

    `policy_epoch`
    : Of each token `[length]`: the weights whose logits it was sampled from; prompt tokens carry the epoch at which
      the request was admitted. It never changes.

    `kv_cache_epoch`
    : The weights that wrote the keys and values cached for the position `[length]` when the request finished. The last
      sampled token has none yet and carries its policy epoch.

    `oldest_attended_kv_epoch`
    : Of each sampled token `[length]`: the oldest keys and values that the pass it was sampled from attended to. Tokens
      that were not sampled have none.

    `sampled`
    : `(start, stop)` of the tokens that the engine sampled, rising, stop exclusive. One turn has one span, after its
      prompt; a trajectory of several turns has one a turn.

    `num_evictions`, `num_preemptions`, `num_recomputes`, `prefix_cached_tokens`
    : How often its blocks were taken, how often it was paused with its blocks, how often a suspend dropped its cache,
      and how many tokens' keys and values were taken from other requests' blocks. `None` where the source cannot know.

    `admission_epoch`, `completion_epoch`
    : The engine's epoch when the request came and when it ended, or `None`.

    `status`
    : `finished`; `aborted`, with the tokens it had come to; or `failed`, which joins no staleness statistic.

    The constructor raises `ValueError` for lengths that differ and for spans outside the sequence; `check` holds the
    epochs to each other.
    """

    request: int | str
    policy_epoch: EpochRuns
    kv_cache_epoch: EpochRuns
    oldest_attended_kv_epoch: EpochRuns
    sampled: Spans
    num_evictions: int | None = 0
    num_preemptions: int | None = 0
    num_recomputes: int | None = 0
    prefix_cached_tokens: int | None = 0
    admission_epoch: int | None = None
    completion_epoch: int | None = None
    status: Status = "finished"

    def __post_init__(self) -> None:
        for name in EPOCHS[1:]:
            if getattr(self, name).length != self.length:
                raise ValueError(f"{name} has {getattr(self, name).length} tokens, policy_epoch {self.length}")
        last = 0
        for start, stop in self.sampled:
            if not last <= start <= stop <= self.length:
                raise ValueError(f"sampled span {start}:{stop} does not lie after token {last} of {self.length} tokens")
            last = stop

    @property
    def length(self) -> int:
        """Tokens in all, prompt and generated."""
        return self.policy_epoch.length

    @property
    def num_sampled(self) -> int:
        """Tokens that the engine sampled."""
        return sum(stop - start for start, stop in self.sampled)

    def of_sampled(self, name: str) -> EpochRuns:
        """The epochs called `name` (`policy_epoch`, ...) of the sampled tokens alone, `[num_sampled]`."""
        runs, joined = getattr(self, name), EpochRuns((), 0)
        for start, stop in self.sampled:
            for first, last, epoch in runs.slice(start, stop).spans():
                joined = joined.append(epoch, last - first)
        return joined

    def segments(self) -> Iterator[Segment]:
        """The sampled tokens in order, neighbours with equal epochs taken together."""
        for begin, end in self.sampled:
            for start, stop, policy, kv, attended in self.aligned(begin, end):
                yield Segment(policy, kv, attended, stop - start)

    def aligned(self, begin: int, end: int) -> Iterator[tuple[int, int, int | None, int | None, int | None]]:
        """`(start, stop, policy, kv, attended)` of tokens `begin` to `end`, cut wherever one of the three epochs changes."""
        sources = (self.policy_epoch.runs, self.kv_cache_epoch.runs, self.oldest_attended_kv_epoch.runs)
        places, at = [0, 0, 0], begin
        epochs: list[int | None] = [None, None, None]
        while at < end:
            stop = end
            for kind, runs in enumerate(sources):
                place, count = places[kind], len(runs)
                while place < count and runs[place][0] <= at:
                    epochs[kind] = runs[place][1]
                    place += 1
                places[kind] = place
                if place < count and runs[place][0] < stop:
                    stop = runs[place][0]
            yield at, stop, epochs[0], epochs[1], epochs[2]
            at = stop


def check(record: RequestRecord) -> None:
    """Hold a record's epochs to what can be true; raises `ValueError` that names the first token which breaks it.

    For each token the policy epoch is at most the KV epoch, for each sampled token the oldest attended KV epoch is at
    most the policy epoch, and policy epochs of sampled tokens never fall. Tokens taken from the prefix cache may have KV
    older than their policy. What is missing, and counts that are `None`, excuse what they cannot rule out.

    KV epochs may well fall along a sequence: another request that shares a block can compute it again, newer, and no
    count of this request tells.
    """
    reused = record.length if record.prefix_cached_tokens is None else record.prefix_cached_tokens
    for start, stop, policy, kv, _ in record.aligned(0, record.length):
        if policy is not None and kv is not None and policy > kv and stop > reused:
            raise ValueError(
                f"token {max(start, reused)} of request {record.request!r}: KV epoch {kv} is older than its policy epoch "
                f"{policy}; policy staleness is never below KV staleness"
            )
    last = 0
    for begin, end in record.sampled:
        for start, _, policy, _, attended in record.aligned(begin, end):
            if policy is None:
                continue
            if attended is not None and attended > policy:
                raise ValueError(
                    f"token {start} of request {record.request!r}: oldest attended KV epoch {attended} is newer than its "
                    f"policy epoch {policy}"
                )
            if policy < last:
                raise ValueError(
                    f"token {start} of request {record.request!r}: policy epoch falls from {last} to {policy}"
                )
            last = policy


def newer_than(record: RequestRecord, step: int) -> str | None:
    """What of a record is newer than training step `step`, which then cannot have consumed it; `None` if nothing is."""
    for name in EPOCHS:
        for start, epoch in getattr(record, name).runs:
            if epoch is not None and epoch > step:
                return f"{name} {epoch} of token {start}"
    if record.completion_epoch is not None and record.completion_epoch > step:
        return f"completion_epoch {record.completion_epoch}"
    return None


def merge_turns(turns: Sequence[RequestRecord]) -> RequestRecord:
    """One record for a trajectory whose turns each hold all tokens of the turns before them.

    Each token is counted once: its policy and attended epochs come from the turn that sampled it, its KV epoch from the
    last turn, whose cache is the newest. Tokens that a turn's prompt adds (a tool's answer) were not sampled and have no
    policy epoch, except in the first turn's prompt. Counts are summed. Raises `ValueError` without turns, when a turn is
    shorter than the one before it, and when its prompt does not hold all of it.
    """
    if not turns:
        raise ValueError("a trajectory needs one turn at least")
    merged = turns[0]
    for number, turn in enumerate(turns[1:], 1):
        start = turn.sampled[0][0] if turn.sampled else turn.length
        if start < merged.length:
            raise ValueError(
                f"turn {number} has a prompt of {start} tokens, fewer than the {merged.length} of the turn before it"
            )
        told = start - merged.length
        policy = EpochRuns.merge_turns([merged.policy_epoch.append(None, told), turn.policy_epoch])
        attended = EpochRuns.merge_turns(
            [merged.oldest_attended_kv_epoch.append(None, told), turn.oldest_attended_kv_epoch]
        )
        counts: dict[str, Any] = {name: _sum(getattr(merged, name), getattr(turn, name)) for name in COUNTS}
        merged = replace(
            turn,
            policy_epoch=policy,
            oldest_attended_kv_epoch=attended,
            sampled=merged.sampled + turn.sampled,
            admission_epoch=merged.admission_epoch,
            **counts,
        )
    return merged


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
