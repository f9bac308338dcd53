"""The epochs of one sequence's tokens, run-length encoded, as an inference engine stamps them.

An epoch is the integer that names the policy checkpoint loaded in the engine. Megatron-RL hands a rollout's
`policy_epoch` and `kv_cache_epoch` over as lists of `(start index, epoch)`, each holding until the next start;
`EpochRuns` is that list in its one canonical form, so that two equal histories compare equal. A token without a stamp
has the epoch `None`, in arrays `MISSING`; it is never counted as epoch 0 or as fresh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

MISSING = -1
"""What stands in an integer array for an epoch or a staleness that nobody knows. Real ones are 0 or more."""


def _integer(value: object, name: str, *of: int) -> int:
    """`value` as a plain `int` that is 0 or more; `True` is a mistake here, never a 1. `name.format(*of)` in errors."""
    if type(value) is int and value >= 0:  # nearly always, and a file has a hundred thousand of them
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name.format(*of)} must be an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name.format(*of)} must be 0 or more, got {value}")
    return int(value)


def _pair(boundary: object, number: int) -> tuple[int, int | None]:
    """One stamped boundary as `(start, epoch)`; `number` is its place in the list, for the error."""
    # Sequence leaves out sets, whose order is chance, and str, whose "pairs" are letters, fails as a non-integer.
    if not isinstance(boundary, list | tuple | Sequence | np.ndarray) or len(boundary) != 2:
        raise ValueError(f"boundary {number} must be a pair (start, epoch), got {boundary!r}")
    start, epoch = boundary
    start = _integer(start, "start of boundary {}", number)
    return start, None if epoch is None else _integer(epoch, "epoch of boundary {}", number)


def _canonical(boundaries: Iterable[object], length: int) -> tuple[tuple[int, int | None], ...]:
    """The checked runs: starts rise, neighbours differ, and each run holds at least one of `length` tokens."""
    stamped = [_pair(boundary, number) for number, boundary in enumerate(boundaries)]
    if length and not stamped:
        raise ValueError(f"no epoch boundary for {length} tokens; missing epochs are never taken as 0")
    if length and stamped[0][0] != 0:
        raise ValueError(f"the first boundary must start at token 0, got {stamped[0][0]}")
    runs: list[tuple[int, int | None]] = []
    last_start = 0
    for number, (start, epoch) in enumerate(stamped):
        if start < last_start:
            raise ValueError(f"start of boundary {number} goes backwards, from {last_start} to {start}")
        last_start = start
        if start >= length:  # stamped on tokens that were cut off, or on none; later starts are still checked
            continue
        if runs and runs[-1][0] == start:  # two updates with no token between: the first left no trace
            runs.pop()
        if not runs or runs[-1][1] != epoch:
            runs.append((start, epoch))
    return tuple(runs)


@dataclass(frozen=True)
class EpochRuns:
    """Which epoch each of a sequence's tokens carries, as runs of equal epochs.

    `runs`
    : `(start index, epoch)` of each run, starts rising from 0, no two neighbours with the same epoch. Indices count
      the sequence's tokens from 0; an epoch is the number of a policy checkpoint (a training step), or `None` where
      no stamp is known.

    `length`
    : Tokens in the sequence. The last run ends here.

    ```python
    from reference_impl.staleness.epochs import EpochRuns

    runs = EpochRuns.from_boundaries([(0, 3), (4, 5)], length=6)
    print(runs.expand(), "at step 6:", runs.staleness(6))
    ```

    ```text
    [3 3 3 3 5 5] at step 6: [3 3 3 3 1 1]
    ```

    The plain constructor takes canonical runs only and raises `ValueError` for any other; what an engine stamped
    goes through `EpochRuns.from_boundaries`. Source of the form: Megatron-RL, whose `policy_epoch` and
    `kv_cache_epoch` are lists of `(start index, epoch)`.
    """

    runs: tuple[tuple[int, int | None], ...]
    length: int

    def __post_init__(self) -> None:
        if self.runs != _canonical(self.runs, _integer(self.length, "length")):
            raise ValueError(f"runs {self.runs!r} are not canonical; build them with EpochRuns.from_boundaries")

    @classmethod
    def from_boundaries(cls, boundaries: Iterable[Sequence[int | None]], length: int) -> EpochRuns:
        """The runs that a list of stamped boundaries describes.

        `boundaries`
        : Pairs `(start, epoch)`, tuples or lists, starts never falling. Where two share a start the later one wins
          (the earlier epoch has no token); equal neighbours are merged; a boundary at or past `length` is dropped,
          because the sequence may have been cut after it was stamped.

        `length`
        : Tokens in the sequence, 0 or more.

        Raises `ValueError`, in one line, when tokens have no boundary or the first does not start at 0, when a start
        goes backwards, and for anything that is not an integer of 0 or more (a bool is none); an epoch may be `None`.
        """
        length = _integer(length, "length")
        return cls._canonical(_canonical(boundaries, length), length)

    @classmethod
    def _canonical(cls, runs: tuple[tuple[int, int | None], ...], length: int) -> EpochRuns:
        """`runs` that came from canonical ones, and are not checked once more: a step handles thousands."""
        made = object.__new__(cls)
        object.__setattr__(made, "runs", runs)
        object.__setattr__(made, "length", length)
        return made

    @classmethod
    def from_tokens(cls, epochs: Sequence[int | None] | np.ndarray) -> EpochRuns:
        """The runs of epochs given token by token; `None` and `MISSING` (-1) are tokens without a stamp."""
        values = [MISSING if epoch is None else epoch for epoch in epochs] if isinstance(epochs, Sequence) else epochs
        array = np.asarray(values)
        starts = np.flatnonzero(np.r_[True, array[1:] != array[:-1]]).tolist() if len(array) else []
        runs = [(start, None if array[start] == MISSING else array[start]) for start in starts]
        return cls.from_boundaries(runs, len(array))

    @classmethod
    def missing(cls, length: int) -> EpochRuns:
        """`length` tokens without any stamp."""
        return cls.from_boundaries([(0, None)], length)

    @classmethod
    def merge_turns(cls, turns: Sequence[EpochRuns]) -> EpochRuns:
        """One trajectory's epochs from those of its turns, each turn holding all tokens of the turns before it.

        Every token is taken from the turn in which it appeared first, so that none counts twice. Raises `ValueError`
        when a turn is shorter than the one before it.
        """
        merged = cls((), 0)
        for number, turn in enumerate(turns):
            if turn.length < merged.length:
                raise ValueError(
                    f"turn {number} has {turn.length} tokens, fewer than the {merged.length} of the turn before it"
                )
            for start, stop, epoch in turn.slice(merged.length, turn.length).spans():
                merged = merged.append(epoch, stop - start)
        return merged

    def spans(self) -> Iterator[tuple[int, int, int | None]]:
        """`(start, stop, epoch)` of each run in order; `stop` is exclusive."""
        stops = [start for start, _ in self.runs[1:]] + [self.length]
        for (start, epoch), stop in zip(self.runs, stops, strict=False):  # an empty sequence has one stop, no run
            yield start, stop, epoch

    def expand(self) -> np.ndarray:
        """The epoch of each token: int64, shape `[length]`, `MISSING` where there is no stamp."""
        epochs = np.array([MISSING if epoch is None else epoch for _, epoch in self.runs], dtype=np.int64)
        return np.repeat(epochs, [stop - start for start, stop, _ in self.spans()])

    @property
    def stamped(self) -> int:
        """How many tokens carry an epoch."""
        return sum(stop - start for start, stop, epoch in self.spans() if epoch is not None)

    def staleness(self, step: int) -> np.ndarray:
        """The staleness of each token when training step `step` consumes it, `step - epoch`.

        int64, `[length]`, `MISSING` where there is no stamp. Raises `ValueError` naming the first token whose epoch
        is newer than `step`.
        """
        step, epochs = self._checked_step(step), self.expand()
        return np.where(epochs == MISSING, MISSING, step - epochs)

    def histogram(self, step: int) -> dict[int, int]:
        """`{staleness: tokens}`, rising; tokens without a stamp are left out. Raises `ValueError` like `staleness`."""
        step = self._checked_step(step)
        tokens: Counter[int] = Counter()
        for start, stop, epoch in self.spans():
            if epoch is not None:
                tokens[step - epoch] += stop - start
        return dict(sorted(tokens.items()))

    def mean_staleness(self, step: int) -> float:
        """The mean of `staleness(step)` over the stamped tokens, in training steps, without expanding the runs.

        Every token weighs the same, so 9 tokens at epoch 1 and 1 at epoch 5, consumed at step 6, give 4.6 and not
        the runs' own mean of 3.0. Raises `ValueError` like `staleness`, and for a sequence without a stamp.
        """
        tokens = self._histogram_of_some(step)
        return sum(stale * count for stale, count in tokens.items()) / sum(tokens.values())

    def std_staleness(self, step: int) -> float:
        """The standard deviation of `staleness(step)` over the stamped tokens (divided by their number, not one less)."""
        tokens, mean = self._histogram_of_some(step), self.mean_staleness(step)
        return (sum(count * (stale - mean) ** 2 for stale, count in tokens.items()) / sum(tokens.values())) ** 0.5

    def max_staleness(self, step: int) -> int:
        """The staleness of the oldest stamped token at training step `step`."""
        return max(self._histogram_of_some(step))

    def min_staleness(self, step: int) -> int:
        """The staleness of the newest stamped token at training step `step`."""
        return min(self._histogram_of_some(step))

    def slice(self, start: int, stop: int) -> EpochRuns:
        """The runs of tokens `start` to `stop` (exclusive), counted anew from 0.

        Raises `ValueError` unless `0 <= start <= stop <= length`: a range outside the sequence is a wrong prompt
        length more often than it is a wish.
        """
        start, stop = _integer(start, "start"), _integer(stop, "stop")
        if not start <= stop <= self.length:
            raise ValueError(f"slice {start}:{stop} does not lie within the sequence's {self.length} tokens")
        kept = [(max(first - start, 0), epoch) for first, last, epoch in self.spans() if last > start and first < stop]
        return EpochRuns._canonical(tuple(kept) if stop > start else (), stop - start)

    def truncate(self, length: int) -> EpochRuns:
        """The runs of the first `length` tokens. Raises `ValueError` unless `0 <= length <= self.length`."""
        return self.slice(0, length)

    def append(self, epoch: int | None, count: int = 1) -> EpochRuns:
        """The runs with `count` more tokens of `epoch` at the end; a count of 0 changes nothing.

        Raises `ValueError` for an epoch (other than `None`) or a count that is not an integer of 0 or more.
        """
        epoch, count = None if epoch is None else _integer(epoch, "epoch"), _integer(count, "count")
        same = not count or (self.runs and self.runs[-1][1] == epoch)
        return EpochRuns._canonical(self.runs if same else (*self.runs, (self.length, epoch)), self.length + count)

    @property
    def oldest(self) -> int:
        """The smallest epoch of any token. Raises `ValueError` when no token has a stamp."""
        return min(self._epochs())

    @property
    def newest(self) -> int:
        """The largest epoch of any token. Raises `ValueError` when no token has a stamp."""
        return max(self._epochs())

    def to_json(self) -> list[list[int | None]]:
        """`[[start, epoch], ...]`, as a run folder stores it; `from_boundaries` with `length` reads it back."""
        return [[start, epoch] for start, epoch in self.runs]

    def _epochs(self) -> list[int]:
        epochs = [epoch for _, epoch in self.runs if epoch is not None]
        if not epochs:
            raise ValueError("no token has a stamp" if self.runs else "an empty sequence has no epochs")
        return epochs

    def _histogram_of_some(self, step: int) -> dict[int, int]:
        self._epochs()
        return self.histogram(step)

    def _checked_step(self, step: int) -> int:
        """`step` as an `int` that no token's epoch is ahead of."""
        step = _integer(step, "step")
        for start, epoch in self.runs:
            if epoch is not None and epoch > step:
                raise ValueError(f"step {step} is older than epoch {epoch} of token {start}")
        return step
