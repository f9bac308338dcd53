"""What a training step consumes, and how stale it is: records in, staleness per token, per rollout and per step out.

Staleness is the consuming step minus an epoch, so it exists only here. Failed rollouts and those without a sampled token
are counted and left out; what has no stamp is left out of a statistic and shows in its coverage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from reference_impl.staleness.epochs import MISSING
from reference_impl.staleness.records import STATUSES, RequestRecord
from reference_impl.staleness.rollouts import Columns, Rollouts

WhenOlder = Literal["keep", "drop", "wait"]
"""What becomes of a rollout that is older than the bound."""

WHEN_OLDER = ("keep", "drop", "wait")
KINDS = {"policy": "policy", "kv_cache": "kv", "attended_kv": "attended"}
"""Kinds of staleness, by the name that metrics use, and the column of their epochs."""


@dataclass(frozen=True)
class PerRollout:
    """One kind of staleness over each consumed rollout's sampled tokens: float64 `[rollouts]`, NaN without a stamp.

    `oldest`, `last`
    : Of its oldest token and of the token sampled last, in training steps.

    `mean`, `std`
    : Over its stamped tokens, each weighing the same; the deviation is divided by their number.

    `stamped`
    : int64 `[rollouts]`: sampled tokens with a stamp.
    """

    oldest: np.ndarray
    last: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    stamped: np.ndarray


@dataclass(frozen=True)
class Consumption:
    """What training step `step` takes, and what it does not.

    `names`, `columns`
    : Everything that was offered: the rollouts' names, and their columns.

    `rollouts`
    : Numbers, in the order of `Rollouts`, of those that are trained on: int64 `[rollouts]`.

    `failed`, `empty`
    : How many rollouts failed, and how many had no sampled token; neither is in `rollouts`.

    `over_bound`, `dropped`
    : Numbers of the rollouts older than the bound, and of those among them that were left out for it.

    `waiting_for`
    : Requests under way for which the step should wait; then nothing is consumed yet.
    """

    step: int
    names: tuple[int | str, ...]
    columns: Columns
    rollouts: np.ndarray
    failed: int
    empty: int
    over_bound: np.ndarray
    dropped: np.ndarray
    waiting_for: tuple[int | str, ...] = ()

    @cached_property
    def segments(self) -> np.ndarray:
        """Numbers of the consumed rollouts' segments in `columns`, int64 `[segments]`."""
        first = self.columns.first
        if len(self.rollouts) == len(first) - 1:
            return np.arange(first[-1])
        counts = first[self.rollouts + 1] - first[self.rollouts]
        skipped = first[self.rollouts] - np.concatenate([[0], counts.cumsum()[:-1]])
        return np.arange(counts.sum()) + np.repeat(skipped, counts)

    @cached_property
    def bounds(self) -> np.ndarray:
        """Where each consumed rollout's segments begin within `segments`, int64 `[rollouts + 1]`."""
        first = self.columns.first
        return np.concatenate([[0], (first[self.rollouts + 1] - first[self.rollouts]).cumsum()])

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens of each consumed segment, int64 `[segments]`."""
        return self.columns.tokens[self.segments]

    def staleness(self, kind: str) -> np.ndarray:
        """Staleness of each consumed segment, int64 `[segments]`, `MISSING` without a stamp; `kind` is a key of `KINDS`."""
        return self._staleness[kind]

    @cached_property
    def _staleness(self) -> dict[str, np.ndarray]:
        found = {}
        for kind, column in KINDS.items():
            epochs = getattr(self.columns, column)[self.segments]
            found[kind] = np.where(epochs == MISSING, MISSING, self.step - epochs)
        return found

    def per_rollout(self, kind: str) -> PerRollout:
        """One kind of staleness over each consumed rollout; `kind` is a key of `KINDS`."""
        return self._per_rollout[kind]

    @cached_property
    def _per_rollout(self) -> dict[str, PerRollout]:
        return {kind: _per_rollout(self.staleness(kind), self.tokens, self.bounds) for kind in KINDS}

    def histogram(self, kind: str) -> dict[int, int]:
        """`{staleness: tokens}` over all consumed sampled tokens with a stamp, rising."""
        staleness = self.staleness(kind)
        known = staleness != MISSING
        values, places = np.unique(staleness[known], return_inverse=True)
        return dict(zip(values.tolist(), np.bincount(places, self.tokens[known]).astype(int).tolist(), strict=True))

    @cached_property
    def completion_gap(self) -> np.ndarray:
        """`step` minus the epoch at completion of each consumed rollout, float64 `[rollouts]`, NaN where unknown."""
        epochs = self.columns.completion_epoch[self.rollouts]
        return np.where(epochs == MISSING, np.nan, self.step - epochs)

    def lengths(self, rollouts: np.ndarray) -> np.ndarray:
        """Sampled tokens of the given rollouts, int64."""
        return self.columns.sampled[rollouts]


def consume(
    step: int,
    rollouts: Rollouts | Iterable[RequestRecord],
    *,
    max_staleness: int | None = None,
    when_older: WhenOlder = "keep",
    in_flight: Iterable[RequestRecord] = (),
) -> Consumption:
    """Give rollouts to training step `step`.

    A rollout's age is the policy staleness of its oldest sampled token. When it is above `max_staleness`:

    * `keep` trains on it all the same and counts it.
    * `drop` leaves it out. Long rollouts take longer and are dropped more often, so the lengths of what was dropped are
      kept beside those of what was offered.
    * `wait` drops as well, but first sees to it that there is little to drop: `in_flight` holds the records so far of
      requests under way, and while one of them would be too old at the next step, nothing is consumed (`waiting_for`).

    Raises `ValueError` for a step that is older than a rollout's epoch, naming the token, or than its completion.
    """
    if not _is_integer(step) or step < 0:
        raise ValueError(f"step must be an integer of 0 or more, got {step!r}")
    if when_older not in WHEN_OLDER:
        raise ValueError(f"when_older: expected one of {', '.join(WHEN_OLDER)}, got {when_older!r}")
    if max_staleness is not None and (not _is_integer(max_staleness) or max_staleness < 0):
        raise ValueError(f"max_staleness must be an integer of 0 or more, got {max_staleness!r}")
    offered = rollouts if isinstance(rollouts, Rollouts) else Rollouts(rollouts)
    columns = offered.columns()
    failed = columns.status == STATUSES.index("failed")
    usable = np.flatnonzero(~failed & (columns.sampled > 0))
    everything = Consumption(
        step=int(step),
        names=tuple(offered),
        columns=columns,
        rollouts=usable,
        failed=int(failed.sum()),
        empty=int((~failed & (columns.sampled == 0)).sum()),
        over_bound=usable[:0],
        dropped=usable[:0],
    )
    refuse_the_future(everything)
    if max_staleness is None:
        return everything
    old = usable[everything.per_rollout("policy").oldest > max_staleness]
    drops = old if when_older != "keep" else usable[:0]
    late = _late(in_flight, step + 1, max_staleness) if when_older == "wait" else ()
    return replace(
        everything,
        rollouts=usable[:0] if late else np.setdiff1d(usable, drops, assume_unique=True),
        over_bound=old,
        dropped=drops[:0] if late else drops,
        waiting_for=late,
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _late(in_flight: Iterable[RequestRecord], step: int, max_staleness: int) -> tuple[int | str, ...]:
    """Requests whose oldest sampled token would be past the bound at `step`."""
    late = []
    for record in in_flight:
        policy = record.of_sampled("policy_epoch")
        if policy.stamped and policy.oldest + max_staleness < step:
            late.append(record.request)
    return tuple(late)


def refuse_the_future(consumption: Consumption) -> None:
    """Raise `ValueError` for a step that is older than what it consumes, naming the first token."""
    for kind, column in KINDS.items():
        epochs = getattr(consumption.columns, column)[consumption.segments]
        if not (epochs > consumption.step).any():
            continue
        segment = int(np.flatnonzero(epochs > consumption.step)[0])
        number = int(np.searchsorted(consumption.bounds, segment, side="right")) - 1
        token = int(consumption.tokens[consumption.bounds[number] : segment].sum())
        name = consumption.names[consumption.rollouts[number]]
        raise ValueError(
            f"step {consumption.step} is older than the {kind} epoch {epochs[segment]} of sampled token {token} "
            f"of request {name!r}"
        )
    completion = consumption.columns.completion_epoch[consumption.rollouts]
    if (completion > consumption.step).any():
        number = int(np.flatnonzero(completion > consumption.step)[0])
        raise ValueError(
            f"step {consumption.step} is older than the completion epoch {completion[number]} of request "
            f"{consumption.names[consumption.rollouts[number]]!r}"
        )


def _per_rollout(staleness: np.ndarray, tokens: np.ndarray, bounds: np.ndarray) -> PerRollout:
    starts = bounds[:-1]
    if not len(starts):
        nothing = np.zeros(0)
        return PerRollout(nothing, nothing, nothing, nothing, np.zeros(0, np.int64))
    known = staleness != MISSING
    weights = tokens * known
    stamped = np.add.reduceat(weights, starts)
    with np.errstate(invalid="ignore"):  # 0 tokens with a stamp: the mean is NaN, as it should be
        mean = np.add.reduceat(weights * staleness, starts) / stamped
        off = staleness - np.repeat(mean, np.diff(bounds))
        std = np.sqrt(np.add.reduceat(np.where(known, weights * off * off, 0.0), starts) / stamped)
    oldest = np.maximum.reduceat(staleness, starts).astype(np.float64)  # MISSING is below any staleness
    last = staleness[bounds[1:] - 1].astype(np.float64)
    oldest[oldest == MISSING] = np.nan
    last[last == MISSING] = np.nan
    return PerRollout(oldest, last, mean, std, stamped)
