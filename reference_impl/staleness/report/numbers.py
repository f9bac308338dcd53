"""The report's numbers: the run's headline, a table of training steps, and the metrics of two runs side by side.

Every staleness number comes from `metrics.measure`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reference_impl.staleness.consumption import KINDS
from reference_impl.staleness.metrics import METRICS
from reference_impl.staleness.records import STATUSES
from reference_impl.staleness.report.view import KIND_NAMES, View, over_steps

UNKNOWN = "–"


class Column(NamedTuple):
    """One column of the table of steps: its heading in two lines, its metric, and how the value is written."""

    group: str
    name: str
    metric: str
    form: str


STALENESS = [
    Column(KIND_NAMES[kind], name, metric, form)
    for kind in KINDS
    for name, metric, form in (
        ("mean", f"mean_{kind}_staleness", ".2f"),
        ("max", f"max_{kind}_staleness", ".0f"),
        ("min", f"min_{kind}_staleness", ".0f"),
        ("cover", f"{kind}_coverage", ".0%"),
    )
]
ROLLOUTS = [
    Column("rollouts", "consumed", "consumed_rollouts", ",.0f"),
    Column("rollouts", "dropped", "dropped_rollouts", ",.0f"),
    Column("rollouts", "failed", "failed_rollouts", ",.0f"),
    Column("rollouts", "empty", "empty_rollouts", ",.0f"),
    Column("", "tokens", "consumed_tokens", ",.0f"),
    Column("", "completion gap", "mean_completion_gap", ".2f"),
    Column("", "evictions", "total_eviction_count", ",.0f"),
]


def cells(values: Mapping[str, float], columns: Sequence[Column]) -> list[str]:
    """A step's metrics as they are written in `columns`."""
    return [_written(values.get(column.metric, math.nan), column.form) for column in columns]


def _written(value: float, form: str) -> str:
    if math.isnan(value):
        return UNKNOWN
    text = format(value, form)
    # 99.7 % of the tokens are not all of them.
    return "<100%" if text == "100%" and value < 1 else text


def headline(view: View) -> dict[str, str]:
    """The numbers at the head of a run's report, by what they are."""
    columns, overall = view.everything.columns, view.overall
    numbers = {
        "sequences": f"{len(columns.sampled):,}",
        "generated tokens": f"{columns.sampled.sum():,}",
        "weight updates": f"{len(view.run.updates):,}",
    }
    if not view.assumed:
        numbers["training steps"] = f"{len(view.consumptions):,}"
    for kind, name in KIND_NAMES.items():
        numbers[f"mean {name} staleness"] = _written(overall.get(f"mean_{kind}_staleness", math.nan), ",.2f")
    numbers["mean completion gap"] = _written(overall.get("mean_completion_gap", math.nan), ",.2f")
    mixed = view.everything.per_rollout("policy")
    numbers["sequences with two or more policy epochs"] = f"{(mixed.std[mixed.stamped > 0] > 0).sum():,}"
    known = columns.num_evictions[columns.num_evictions >= 0]
    numbers["evictions"] = f"{known.sum():,}" if len(known) or not len(columns.sampled) else UNKNOWN
    exceptions = {
        "sequences ended early": int((columns.status == STATUSES.index("aborted")).sum()),
        "failed sequences": int((columns.status == STATUSES.index("failed")).sum()),
        "sequences that no step consumed": view.unconsumed,
        "unreadable lines, left out": view.run.bad_lines,
    }
    return numbers | {name: f"{count:,}" for name, count in exceptions.items() if count}


def coverage(view: View) -> str:
    """In a sentence how much of the consumed tokens is known; empty when it is all of them."""
    shares = {kind: view.coverage(kind) for kind in KINDS}
    if all(np.isnan(share) or share == 1 for share in shares.values()):
        return ""
    parts = [f"{KIND_NAMES[kind]} {_written(share, '.0%')}" for kind, share in shares.items()]
    return f"Tokens with a stamp: {', '.join(parts)}. What is not known is grey, and in no mean."


class Difference(NamedTuple):
    """One metric of two runs; NaN where a run has no value. `how` says how several steps became one value."""

    name: str
    unit: str
    how: str
    first: float
    second: float

    @property
    def written(self) -> tuple[str, str, str]:
        """Both values and the second less the first, as they are shown."""
        change = self.second - self.first
        sign = "+" if change > 0 else "−" if change < 0 else ""
        said = UNKNOWN if math.isnan(change) else f"{sign}{_short(abs(change))}"
        return _short(self.first), _short(self.second), said


def differences(first: View, second: View) -> Iterator[Difference]:
    """Every metric that one of two runs has a value of, in the registry's order."""
    several = max(len(first.consumptions), len(second.consumptions)) > 1
    for name, metric in METRICS.items():
        values = first.overall.get(name, math.nan), second.overall.get(name, math.nan)
        if not all(map(math.isnan, values)):
            yield Difference(name, metric.unit, over_steps(name) if several else "", *values)


def _short(value: float) -> str:
    """Whole numbers with separators, others with three decimals."""
    if math.isnan(value):
        return UNKNOWN
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3f}"
