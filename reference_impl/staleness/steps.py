"""What is logged of one training step: its scalars, its histograms, and a table each of rollouts and of their tokens.

Names and definitions are those of Megatron-RL's training log wherever it has them, so that a dashboard made for it shows
the same curves; what it lacks is added under names of our own. Where the log goes is the sinks' business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from reference_impl.staleness.consumption import KINDS, Consumption
from reference_impl.staleness.epochs import MISSING
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.records import COUNTS, STATUSES

Cell = int | float | str | None
"""One value of a table; `None` where it is not known."""

Row = tuple[Cell, ...]
"""One row of a table."""

ROLLOUT_COLUMNS = (
    "rollout",
    "reward",
    "traj_length",
    "num_evictions",
    "policy_staleness",
    "kv_staleness",
    "policy_last_token_staleness",
    "kv_last_token_staleness",
    "policy_avg_staleness",
    "kv_avg_staleness",
    "policy_staleness_std",
    "kv_staleness_std",
    "rollout_status",
    "attended_kv_staleness",
    "num_preemptions",
    "num_recomputes",
    "prefix_cached_tokens",
    "completion_gap",
)
"""Of the table of rollouts: Megatron-RL's from `reward` to `rollout_status`, the name before them, ours after them."""

TOKEN_COLUMNS = ("rollout", "policy_staleness", "kv_staleness", "token_count", "attended_kv_staleness")
"""Of the table of tokens: Megatron-RL's four in their places, ours last, so that code which counts columns still works."""

TABLE_NAMES = {"policy": "policy", "kv_cache": "kv", "attended_kv": "attended_kv"}
"""Kinds of staleness as tables and averages name them. Megatron-RL writes `kv_cache` in scalars only."""

MOST_BINS = 512  # wandb takes no more
BINS_OF_AVERAGES = 64


@dataclass(frozen=True)
class Histogram:
    """How often each value occurs.

    `values`
    : Each value once, rising: int64 or float64 `[values]`, one at least.

    `counts`
    : How often it occurs: int64 `[values]`, each 1 or more.
    """

    values: np.ndarray
    counts: np.ndarray

    def bins(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges `[bins + 1]` and counts `[bins]`, for a tool that cannot take the values themselves.

        An integer is the middle of its bin, alone while 512 bins are enough, else with its neighbours. Averages get 64
        bins of one width from the smallest to the largest.
        """
        low, high = self.values[0], self.values[-1]
        if np.issubdtype(self.values.dtype, np.integer):
            width = -(-(high - low + 1) // MOST_BINS)
            edges = low - 0.5 + width * np.arange(-(-(high - low + 1) // width) + 1)
        elif low == high:
            edges = np.array([low - 0.5, low + 0.5])
        else:
            edges = np.linspace(low, high, BINS_OF_AVERAGES + 1)
        return edges, np.histogram(self.values, edges, weights=self.counts)[0].astype(np.int64)


@dataclass(frozen=True)
class Table:
    """A table whose rows are made when they are first asked for.

    `columns`
    : Their names.

    `make_rows`
    : Called once, by `rows`.
    """

    columns: tuple[str, ...]
    make_rows: Callable[[], list[tuple[int | float | str | None, ...]]] = field(repr=False)

    @cached_property
    def rows(self) -> list[tuple[int | float | str | None, ...]]:
        """One tuple a row, of plain Python values; `None` where something is not known."""
        return self.make_rows()


@dataclass(frozen=True)
class StepLog:
    """What is logged of one training step.

    `step`
    : The step.

    `scalars`
    : `metrics.measure` of what it consumed.

    `histograms`
    : By name, those that have a value. Over rollouts: `rollout_avg_policy_staleness_hist`,
      `rollout_avg_kv_staleness_hist` (both Megatron-RL's) and `rollout_avg_attended_kv_staleness_hist` of each one's mean
      over its tokens; `completion_gap_hist`; `consumed_length_hist` and, where a bound made the step leave rollouts out,
      `dropped_length_hist`, in sampled tokens. Over tokens: `token_policy_staleness_hist`,
      `token_kv_cache_staleness_hist` and `token_attended_kv_staleness_hist`.

    `rollout_table`
    : One row a consumed rollout, columns `ROLLOUT_COLUMNS`. `traj_length` counts prompt and answer. What is called
      `policy_staleness` and so on is that of the oldest sampled token; averages and deviations weigh tokens.
      `rollout_status` is one of `records.STATUSES`.

    `per_token_table`
    : One row for neighbouring sampled tokens of one rollout with the same three values of staleness, columns
      `TOKEN_COLUMNS`. `rollout` is the same name as in the other table.
    """

    step: int
    scalars: dict[str, float]
    histograms: dict[str, Histogram]
    rollout_table: Table
    per_token_table: Table

    def tables(self) -> dict[str, Table]:
        """Both tables by name, once they have a row. This makes the rows."""
        named = {"rollout_table": self.rollout_table, "per_token_table": self.per_token_table}
        return {name: table for name, table in named.items() if table.rows}


def step_log(consumption: Consumption) -> StepLog:
    """What to log of a step that has consumed its rollouts."""
    return StepLog(
        step=consumption.step,
        scalars=measure(consumption),
        histograms=_histograms(consumption),
        rollout_table=Table(ROLLOUT_COLUMNS, lambda: _rollout_rows(consumption)),
        per_token_table=Table(TOKEN_COLUMNS, lambda: _token_rows(consumption)),
    )


def _histograms(consumption: Consumption) -> dict[str, Histogram]:
    found = {
        f"rollout_avg_{TABLE_NAMES[kind]}_staleness_hist": _counted(consumption.per_rollout(kind).mean)
        for kind in KINDS
    }
    for kind in KINDS:
        tokens = consumption.histogram(kind)
        found[f"token_{kind}_staleness_hist"] = Histogram(
            np.array(list(tokens), np.int64), np.array(list(tokens.values()), np.int64)
        )
    gap = consumption.completion_gap
    found["completion_gap_hist"] = _counted(gap[~np.isnan(gap)].astype(np.int64))
    found["consumed_length_hist"] = _counted(consumption.lengths(consumption.rollouts))
    found["dropped_length_hist"] = _counted(consumption.lengths(consumption.dropped))
    return {name: histogram for name, histogram in found.items() if len(histogram.values)}


def _counted(values: np.ndarray) -> Histogram:
    known = values[~np.isnan(values)]
    return Histogram(*np.unique(known, return_counts=True))


def _rollout_rows(consumption: Consumption) -> list[Row]:
    chosen, columns = consumption.rollouts, consumption.columns
    cells: dict[str, list[Cell]] = {
        "rollout": _names(consumption),
        "reward": _numbers(columns.reward[chosen]),
        "traj_length": columns.length[chosen].tolist(),
        "rollout_status": [STATUSES[status] for status in columns.status[chosen]],
        "completion_gap": _integers(consumption.completion_gap),
    }
    for name in COUNTS:
        counts = getattr(columns, name)[chosen]
        cells[name] = _integers(np.where(counts == MISSING, np.nan, counts))
    for kind, name in TABLE_NAMES.items():
        found = consumption.per_rollout(kind)
        cells[f"{name}_staleness"] = _integers(found.oldest)
        cells[f"{name}_last_token_staleness"] = _integers(found.last)
        cells[f"{name}_avg_staleness"] = _numbers(found.mean)
        cells[f"{name}_staleness_std"] = _numbers(found.std)
    return list(zip(*(cells[name] for name in ROLLOUT_COLUMNS), strict=True))


def _token_rows(consumption: Consumption) -> list[Row]:
    tokens, names = consumption.tokens, _names(consumption)
    if not len(tokens):
        return []
    owner = np.repeat(np.arange(len(names)), np.diff(consumption.bounds))
    staleness = [consumption.staleness(kind) for kind in KINDS]
    # Equal neighbours come from the turns of a trajectory, which are segments of their own.
    begins = np.ones(len(tokens), bool)
    begins[1:] = np.logical_or.reduce([values[1:] != values[:-1] for values in (owner, *staleness)])
    starts = np.flatnonzero(begins)
    policy, kv, attended = (_integers(np.where(s == MISSING, np.nan, s)[starts]) for s in staleness)
    counts = np.add.reduceat(tokens, starts).tolist()
    rollouts = [names[number] for number in owner[starts]]
    return list(zip(rollouts, policy, kv, counts, attended, strict=True))


def _names(consumption: Consumption) -> list[Cell]:
    """The consumed rollouts' names; an engine's ids may be NumPy's integers, which no file format takes."""
    names = (consumption.names[number] for number in consumption.rollouts)
    return [name if isinstance(name, str) else int(name) for name in names]


def _integers(values: np.ndarray) -> list[Cell]:
    return [None if np.isnan(value) else int(value) for value in values.tolist()]


def _numbers(values: np.ndarray) -> list[Cell]:
    return [None if np.isnan(value) else value for value in values.tolist()]
