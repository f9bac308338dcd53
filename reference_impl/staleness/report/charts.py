"""The report's charts of steps: staleness and completion gap over training steps, and what happened to caches.

Several runs are drawn over each other, each in its own style.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from reference_impl.staleness.consumption import KINDS
from reference_impl.staleness.report.figures import STYLES, Panel, Style, beside, layout
from reference_impl.staleness.report.view import KIND_NAMES, View, nothing

EVENTS = {
    "total_eviction_count": "Evictions",
    "total_preemption_count": "Preemptions",
    "total_recompute_count": "Recomputes",
}
MOST_MARKERS = 40


def staleness_over_steps(views: Sequence[View]) -> list[Panel]:
    """For each kind a line, the mean over rollouts of the oldest token's staleness, in a band from least to largest."""
    largest = [values.get(f"max_{kind}_staleness", 0) for view in views for values in view.measured for kind in KINDS]
    return [_lines(f"{KIND_NAMES[kind]} staleness", f"{kind}_staleness", views, max(largest)) for kind in KINDS]


def gap_and_events_over_steps(views: Sequence[View]) -> list[Panel]:
    """The completion gap with its band, then one chart a kind of event that occurred."""
    largest = [values.get("max_completion_gap", 0) for view in views for values in view.measured]
    happened = [name for name in EVENTS if any(view.overall.get(name) for view in views)]
    panels = [_bars_over_steps(name, views) for name in happened] or [events(views)]
    return [_lines("Completion gap", "completion_gap", views, max(largest)), *panels]


def events(views: Sequence[View]) -> Panel:
    """How many events of each kind there were, all steps together."""
    title = "Cache events"
    known = [name for name in EVENTS if any(name in view.overall for view in views)]
    if not known:
        return Panel(title, nothing(views))
    if not any(view.overall.get(name) for view in views for name in known):
        return Panel(title, f"no {', no '.join(EVENTS[name].lower() for name in known)}")
    data = [
        {
            "type": "bar",
            "x": [EVENTS[name] for name in known],
            "y": [view.overall.get(name) for name in known],
            "marker": style.bars(),
            "hovertemplate": "%{x}: %{y:,}<extra></extra>",
            **beside(number, len(views), 0.7),
        }
        for number, (view, style) in enumerate(zip(views, STYLES, strict=False))
    ]
    said = "; ".join(", ".join(f"{EVENTS[name]} {_count(view, name)}" for name in known) for view in views)
    axes = {"type": "category"}, {"rangemode": "tozero", "tickformat": ",d"}
    return Panel(title, f"{title}: {said}", {"data": data, "layout": layout(*axes)})


def _lines(title: str, metric: str, views: Sequence[View], largest: float) -> Panel:
    data: list[dict[str, Any]] = []
    said = []
    for view, style in zip(views, STYLES, strict=False):
        points = [
            (consumption.step, *(values[f"{how}_{metric}"] for how in ("mean", "min", "max")))
            for consumption, values in zip(view.consumptions, view.measured, strict=True)
            if f"mean_{metric}" in values
        ]
        if points:
            steps, means, lows, highs = map(list, zip(*points, strict=True))
            data += _line_in_band(steps, means, lows, highs, style)
            said.append(f"mean {min(means):.2f} to {max(means):.2f}, never above {max(highs):g}")
    if not data:
        return Panel(title, nothing(views))
    # Room above, and a little below: a line at 0 is seen whole.
    vertical = {"range": [-0.03 * (largest or 1), 1.05 * (largest or 1)]}
    figure = {"data": data, "layout": layout(steps_axis(views), vertical)}
    return Panel(title, f"{title} by training step: {'; '.join(said)}", figure)


def _line_in_band(
    steps: list[int], means: list[float], lows: list[float], highs: list[float], style: Style
) -> list[dict[str, Any]]:
    unseen = {"type": "scatter", "x": steps, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    return [
        {**unseen, "y": lows},
        {**unseen, "y": highs, "fill": "tonexty", "fillcolor": style.band},
        {
            "type": "scatter",
            "x": steps,
            "y": [round(mean, 4) for mean in means],
            "customdata": [list(pair) for pair in zip(lows, highs, strict=True)],
            "mode": "lines+markers" if len(steps) <= MOST_MARKERS else "lines",
            "line": style.line,
            "marker": {"color": style.colour, "symbol": style.symbol, "size": 7},
            "hovertemplate": "step %{x}<br>mean %{y:.2f}<br>%{customdata[0]} to %{customdata[1]}<extra></extra>",
        },
    ]


def _bars_over_steps(metric: str, views: Sequence[View]) -> Panel:
    data = []
    apart = _apart(views)
    for number, (view, style) in enumerate(zip(views, STYLES, strict=False)):
        points = [
            (consumption.step, values[metric])
            for consumption, values in zip(view.consumptions, view.measured, strict=True)
            if metric in values
        ]
        data.append(
            {
                "type": "bar",
                "x": [step for step, _ in points],
                "y": [count for _, count in points],
                "marker": style.bars(),
                "hovertemplate": "step %{x}: %{y:,}<extra></extra>",
                **beside(number, len(views), apart),
            }
        )
    said = " and ".join(_count(view, metric) for view in views)
    axes = steps_axis(views), {"rangemode": "tozero", "tickformat": ",d"}
    figure = {"data": data, "layout": layout(*axes)}
    return Panel(EVENTS[metric], f"{EVENTS[metric]} by training step, {said} in all", figure)


def _count(view: View, metric: str) -> str:
    value = view.overall.get(metric, math.nan)
    return "not known" if math.isnan(value) else f"{value:,.0f}"


def _apart(views: Sequence[View]) -> int:
    """The least distance between two steps that are drawn."""
    steps = sorted({consumption.step for view in views for consumption in view.consumptions})
    return min((after - before for before, after in itertools.pairwise(steps)), default=1)


def steps_axis(views: Sequence[View]) -> dict[str, Any]:
    """The axis that charts of steps share."""
    steps = [consumption.step for view in views for consumption in view.consumptions]
    few = max(steps) - min(steps) < 8
    return {"tickformat": "d", "nticks": 8, **({"dtick": 1} if few else {})}
