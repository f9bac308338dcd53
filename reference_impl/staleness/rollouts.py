"""Rollouts that wait to be trained on, as columns: what a step's statistics are computed from, all at once.

Records come one at a time, when requests finish; a training step takes thousands. So each record is taken apart once,
when it comes, and a step works on arrays.
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from reference_impl.staleness.epochs import MISSING
from reference_impl.staleness.records import COUNTS, STATUSES, RequestRecord, check

SEGMENT_COLUMNS = ("policy", "kv", "attended", "tokens")
_COUNTED = operator.attrgetter(*COUNTS, "admission_epoch", "completion_epoch")
ROLLOUT_COLUMNS = ("length", "sampled", *COUNTS, "admission_epoch", "completion_epoch", "status")


@dataclass(frozen=True)
class Columns:
    """Arrays over rollouts, int64 `[rollouts]`, and over their segments of sampled tokens, int64 `[segments]`.

    `policy`, `kv`, `attended`, `tokens`
    : Of each segment: its three epochs and its tokens, rollout after rollout. `MISSING` (-1) is an unknown epoch.

    `first`
    : `[rollouts + 1]`: where each rollout's segments begin; the last entry is their number.

    `length`, `sampled`
    : Tokens in all, and sampled ones.

    `num_evictions`, `num_preemptions`, `num_recomputes`, `prefix_cached_tokens`, `admission_epoch`, `completion_epoch`
    : As in the record, `MISSING` where it says `None`.

    `status`
    : Place of the rollout's status in `records.STATUSES`.

    `reward`
    : float64 `[rollouts]`, NaN where there is none.
    """

    policy: np.ndarray
    kv: np.ndarray
    attended: np.ndarray
    tokens: np.ndarray
    first: np.ndarray
    length: np.ndarray
    sampled: np.ndarray
    num_evictions: np.ndarray
    num_preemptions: np.ndarray
    num_recomputes: np.ndarray
    prefix_cached_tokens: np.ndarray
    admission_epoch: np.ndarray
    completion_epoch: np.ndarray
    status: np.ndarray
    reward: np.ndarray


class Rollouts:
    """Rollouts in the order in which they came. `Rollouts(records)` adds each of them."""

    def __init__(self, records: Iterable[RequestRecord] = ()) -> None:
        self._names: dict[int | str, int] = {}
        self._segments = array("q")  # SEGMENT_COLUMNS of each segment, one after the other
        self._rollouts = array("q")  # ROLLOUT_COLUMNS of each rollout, likewise
        self._first = array("q", [0])
        self._reward = array("d")
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[int | str]:
        """The rollouts' names."""
        return iter(self._names)

    def add(self, record: RequestRecord, reward: float | None = None) -> None:
        """Add one rollout (a trajectory's turns are merged first, see `records.merge_turns`).

        Raises `ValueError` for a name that is here already, for a reward that is not a number, and for epochs that
        contradict each other (`records.check`).
        """
        if record.request in self._names:
            raise ValueError(f"request {record.request!r} is here already; a rollout counts once")
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"reward of request {record.request!r} must be a number, got {reward}")
        check(record)
        self._names[record.request] = len(self._names)
        for segment in record.segments():
            self._segments.extend(_numbers(segment))
        self._rollouts.extend(
            (record.length, record.num_sampled, *_numbers(_COUNTED(record)), STATUSES.index(record.status))
        )
        self._first.append(len(self._segments) // len(SEGMENT_COLUMNS))
        self._reward.append(math.nan if reward is None else reward)

    def columns(self) -> Columns:
        """All that was added, as arrays of their own."""
        segments = np.array(self._segments, np.int64).reshape(-1, len(SEGMENT_COLUMNS)).T.copy()
        rollouts = np.array(self._rollouts, np.int64).reshape(-1, len(ROLLOUT_COLUMNS)).T.copy()
        return Columns(
            first=np.array(self._first, np.int64),
            reward=np.array(self._reward, np.float64),
            **dict(zip(SEGMENT_COLUMNS, segments, strict=True)),
            **dict(zip(ROLLOUT_COLUMNS, rollouts, strict=True)),
        )


def _numbers(values: Iterable[int | None]) -> list[int]:
    return [MISSING if value is None else value for value in values]
