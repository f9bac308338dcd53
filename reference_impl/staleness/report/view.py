"""What a report shows of one run: what each training step consumed of it, as columns.

A run that nothing was trained on has no step of its own. Its staleness is then shown as at one step, by default the
newest epoch that the run names, and the report says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from reference_impl.staleness.consumption import Consumption, consume, refuse_the_future
from reference_impl.staleness.epochs import MISSING
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.records import STATUSES
from reference_impl.staleness.rollouts import Columns, Rollouts
from reference_impl.staleness.runs import Run, Step

KIND_NAMES = {"policy": "policy", "kv_cache": "KV", "attended_kv": "attended KV"}
"""Kinds of staleness in a report's words."""


@dataclass(frozen=True)
class View:
    """One run with its consumptions.

    `name`
    : What the reader called it, a path most often.

    `everything`
    : As if one step had consumed the whole run: all sequences in the run's order, and their columns.

    `consumptions`
    : One a training step, rising, over the same columns.

    `assumed`
    : The run names no training step, and the one consumption is as if step `consumptions[0].step` took everything.
    """

    name: str
    run: Run
    everything: Consumption
    consumptions: tuple[Consumption, ...]
    assumed: bool

    @property
    def title(self) -> str:
        """What generated the run, as far as its header says, or else its name."""
        header = self.run.header
        parts = [str(header["model"])] if header.get("model") else []
        parts += [f"on {header['backend']}"] if header.get("backend") else []
        title = " ".join(parts) + (f", {header['mode']}" if header.get("mode") else "")
        return title.strip(", ") or self.name

    @property
    def full_name(self) -> str:
        """What the reader called the run, and what generated it."""
        return f"{self.name}: {self.title}" if self.name and self.name != self.title else self.title

    @property
    def at(self) -> str:
        """The training steps of the view, in a sentence."""
        steps = [consumption.step for consumption in self.consumptions]
        if self.assumed:
            return (
                "The run names no training step that consumed it, so staleness is shown as if "
                f"step {steps[0]} had consumed all of it."
            )
        if len(steps) == 1:
            return f"Consumed by training step {steps[0]}."
        return f"Consumed by {len(steps)} training steps, {steps[0]} to {steps[-1]}."

    @cached_property
    def measured(self) -> tuple[dict[str, float], ...]:
        """Every metric that has a value, of each step."""
        return tuple(map(measure, self.consumptions))

    @cached_property
    def overall(self) -> dict[str, float]:
        """Every metric over all steps: sums of counts, the largest of maxima, the smallest of minima, else the mean."""
        found: dict[str, list[float]] = {}
        for values in self.measured:
            for name, value in values.items():
                found.setdefault(name, []).append(value)
        return {name: _REDUCE[over_steps(name)](values) for name, values in found.items()}

    def tokens(self, kind: str) -> tuple[dict[float, int], int]:
        """`{staleness: tokens}`, rising, and the tokens without a stamp, over all steps."""
        counts: Counter[float] = Counter()
        for consumption in self.consumptions:
            counts.update(consumption.histogram(kind))
        total = sum(int(consumption.tokens.sum()) for consumption in self.consumptions)
        return dict(sorted(counts.items())), total - counts.total()

    def means(self, kind: str) -> np.ndarray:
        """Mean staleness over each consumed rollout's tokens, all steps together, NaN without a stamp."""
        return np.concatenate([consumption.per_rollout(kind).mean for consumption in self.consumptions])

    def coverage(self, kind: str) -> float:
        """The share of consumed tokens with a stamp, over all steps; NaN when there are none."""
        known, unknown = self.tokens(kind)
        total = sum(known.values()) + unknown
        return sum(known.values()) / total if total else np.nan

    def tokens_by_epoch(self) -> dict[int, int]:
        """`{policy epoch: sampled tokens}` over the whole run; tokens without a stamp under `MISSING`."""
        columns = self.everything.columns
        counts = np.bincount(columns.policy - MISSING, columns.tokens)
        return {int(place) + MISSING: int(counts[place]) for place in np.flatnonzero(counts)}

    @property
    def unconsumed(self) -> int:
        """Sequences that no step was offered."""
        if self.assumed:
            return 0
        offered = {index for step in self.run.steps for index in (*step.consumed, *step.dropped)}
        return len(self.run.sequences) - len(offered)


def nothing(views: Sequence[View]) -> str:
    """Why there is nothing to draw, in a word."""
    return "not known" if any(view.overall["consumed_rollouts"] for view in views) else "nothing was consumed"


_REDUCE: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "largest": max,
    "smallest": min,
    "mean": lambda values: sum(values) / len(values),
}


def over_steps(metric: str) -> str:
    """How a metric's values of several steps become one: `sum`, `largest`, `smallest` or `mean`."""
    if metric.startswith("max_"):
        return "largest"
    if metric.startswith("min_"):
        return "smallest"
    return "sum" if metric.startswith("total_") or metric.endswith(("_rollouts", "consumed_tokens")) else "mean"


def view_of(run: Run, name: str = "", step: int | None = None) -> View:
    """The view of `run`, of all its training steps or of the one numbered `step`.

    For a run that names no training step, `step` is the one that staleness is shown at. Raises `ValueError`, in one
    line, for a step that the run does not have, a step older than an epoch of what it consumes, and records that
    contradict themselves.
    """
    rollouts = Rollouts()
    for sequence in run.sequences:
        rollouts.add(sequence.rollout(), sequence.reward)
    columns = rollouts.columns()
    newest = _newest_epoch(run, columns)
    everything = consume(newest, rollouts)
    if run.steps:
        places = {sequence.index: place for place, sequence in enumerate(run.sequences)}
        consumptions = [_consumption(one, everything, places) for one in _chosen(run.steps, step)]
    else:
        consumptions = [consume(newest if step is None else step, rollouts)]
    for consumption in consumptions:
        refuse_the_future(consumption)
    return View(name, run, everything, tuple(consumptions), assumed=not run.steps)


def refuse_unknown(views: Sequence[View], show: Sequence[int] | None) -> None:
    """Raise `ValueError` for an index that no run has."""
    known = {sequence.index for view in views for sequence in view.run.sequences}
    for index in show or ():
        if index not in known:
            raise ValueError(f"no sequence {index}; there are {len(known)}, {min(known)} to {max(known)}")


def _newest_epoch(run: Run, columns: Columns) -> int:
    named: Iterable[int] = [run.header.get("epoch") or 0, *(update["epoch"] for update in run.updates)]
    stamps = (columns.policy, columns.kv, columns.attended, columns.completion_epoch)
    return max(*named, *(int(epochs.max(initial=0)) for epochs in stamps))


def _chosen(steps: Sequence[Step], step: int | None) -> list[Step]:
    chosen = [one for one in steps if step in (None, one.step)]
    if not chosen:
        numbers = [one.step for one in steps]
        raise ValueError(f"no training step {step} in the run; its steps are {min(numbers)} to {max(numbers)}")
    return sorted(chosen, key=lambda one: one.step)


def _consumption(step: Step, everything: Consumption, places: Mapping[int, int]) -> Consumption:
    """What `step` took of the run, whose sequence of index i is number `places[i]` in the columns."""
    for index in (*step.consumed, *step.dropped):
        if index not in places:
            raise ValueError(f"training step {step.step}: no sequence {index} in the run")
    consumed, dropped = (
        np.array(sorted(places[index] for index in named), np.int64) for named in (step.consumed, step.dropped)
    )
    columns = everything.columns
    offered = np.union1d(consumed, dropped)
    failed = columns.status[offered] == STATUSES.index("failed")
    empty = ~failed & (columns.sampled[offered] == 0)
    usable = offered[~failed & ~empty]
    left_out = np.intersect1d(usable, dropped)
    return replace(
        everything,
        step=step.step,
        rollouts=np.setdiff1d(usable, left_out),
        failed=int(failed.sum()),
        empty=int(empty.sum()),
        over_bound=left_out,
        dropped=left_out,
    )
