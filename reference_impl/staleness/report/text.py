"""The report as text for a terminal: one row a training step, columns that line up, nothing wider than 80 characters.

Every number comes from `metrics.measure`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from reference_impl.staleness.report.numbers import ROLLOUTS, STALENESS, Column, cells, differences
from reference_impl.staleness.report.view import View

type Table = list[list[str]]


def summary(view: View) -> str:
    """What the run is, and its steps in two tables: staleness of each rollout's oldest sampled token, and rollouts."""
    run, columns = view.run, view.everything.columns
    said = (
        f"{len(run.sequences):,} sequences, {columns.sampled.sum():,} generated tokens, {len(run.updates):,} updates."
    )
    if view.unconsumed:
        said += f" Not consumed by any step: {view.unconsumed:,}."
    if run.bad_lines:
        said += f" Unreadable lines, left out: {run.bad_lines:,}."
    return "\n".join(
        [
            view.full_name,
            said,
            view.at,
            "",
            *_table(view, STALENESS),
            "",
            *_table(view, ROLLOUTS),
            "",
            "policy, KV, attended KV: mean_, max_ and min_policy_staleness, _kv_cache_staleness and",
            "_attended_kv_staleness, in training steps; cover: the share of sampled tokens with a stamp.",
            "completion gap: mean_completion_gap. evictions: total_eviction_count.",
        ]
    )


def comparison(first: View, second: View) -> str:
    """Every metric of two runs, and the second's value less the first's."""
    rows = [["metric", "first", "second", "difference"]]
    rows += [[difference.name, *difference.written] for difference in differences(first, second)]
    names = [f"{which}: {view.name or view.title}. {view.at}" for which, view in (("first", first), ("second", second))]
    return "\n".join([*names, "", *_aligned(rows)])


def _table(view: View, columns: Sequence[Column]) -> list[str]:
    """Headings in two lines, then a row a step; groups stand apart."""
    rows = [["step", *(column.name for column in columns)]]
    for consumption, values in zip(view.consumptions, view.measured, strict=True):
        rows.append([str(consumption.step), *cells(values, columns)])
    groups = ["", *(column.group for column in columns)]
    gaps = ["", *("  " if group == before else "    " for before, group in itertools.pairwise(groups))]
    widths = _widths(rows)
    above, at = "", 0
    for gap, width, group in zip(gaps, widths, groups, strict=True):
        above = above.ljust(at + len(gap)) + group if group and len(gap) > 2 else above
        at += len(gap) + width
    lines = [
        "".join(gap + cell.rjust(width) for gap, cell, width in zip(gaps, row, widths, strict=True)) for row in rows
    ]
    return [above, *lines]


def _widths(rows: Table) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _aligned(rows: Table) -> list[str]:
    """The first column to the left, numbers to the right."""
    first, *widths = _widths(rows)
    return [
        name.ljust(first) + "".join("  " + cell.rjust(width) for cell, width in zip(numbers, widths, strict=True))
        for name, *numbers in rows
    ]
