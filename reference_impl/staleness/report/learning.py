"""The report's charts of learning: what the trainer measured in each step, beside the staleness of what it trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_impl.staleness.report.charts import MOST_MARKERS, steps_axis
from reference_impl.staleness.report.figures import STYLES, Panel, layout
from reference_impl.staleness.report.palette import PARTS
from reference_impl.staleness.report.view import View

CURVES = {
    "reward": "Reward",
    "token_mult_prob_error": "Generation against training probabilities",
}
"""Metrics of a trainer that are drawn, with their titles."""

SECONDS = "_seconds"
"""How the metrics end that say how long a part of a step took."""


def learning_over_steps(views: Sequence[View]) -> list[Panel]:
    """A curve for each metric that a run has, and of one run how its steps spent their time; nothing for other runs."""
    known = {name for view in views for step in view.run.steps for name in step.metrics}
    panels = [_curve(title, name, views) for name, title in CURVES.items() if name in known]
    if len(views) == 1 and any(name.endswith(SECONDS) for name in known):
        panels.append(_time(views[0]))
    return panels


def _curve(title: str, metric: str, views: Sequence[View]) -> Panel:
    data: list[dict[str, Any]] = []
    said = []
    for view, style in zip(views, STYLES, strict=False):
        points = [(step.step, step.metrics[metric]) for step in _steps(view) if metric in step.metrics]
        if not points:
            continue
        steps, values = map(list, zip(*points, strict=True))
        data.append(
            {
                "type": "scatter",
                "x": steps,
                "y": [round(value, 4) for value in values],
                "mode": "lines+markers" if len(steps) <= MOST_MARKERS else "lines",
                "line": style.line,
                "marker": {"color": style.colour, "symbol": style.symbol, "size": 7},
                "hovertemplate": "step %{x}<br>%{y:.3f}<extra></extra>",
            }
        )
        said.append(f"from {values[0]:.3g} to {values[-1]:.3g}")
    figure = {"data": data, "layout": layout(steps_axis(views), {})}
    return Panel(title, f"{title} by training step: {'; '.join(said)}", figure)


def _time(view: View) -> Panel:
    """Bars of a step's seconds, part upon part."""
    title = "Seconds of a step"
    names = list(dict.fromkeys(name for step in _steps(view) for name in step.metrics if name.endswith(SECONDS)))
    steps = [step.step for step in _steps(view)]
    parts = [(name.removesuffix(SECONDS), [step.metrics.get(name, 0.0) for step in _steps(view)]) for name in names]
    data = [
        {
            "type": "bar",
            "name": part,
            "x": steps,
            "y": [round(value, 4) for value in values],
            "marker": {"color": PARTS[number % len(PARTS)], "line": {"width": 0}},
            "hovertemplate": f"step %{{x}}<br>{part} %{{y:.3f}} s<extra></extra>",
        }
        for number, (part, values) in enumerate(parts)
    ]
    total = sum(sum(values) for _, values in parts) or 1.0
    said = ", ".join(f"{part} {sum(values) / total:.0%}" for part, values in parts)
    legend = {"showlegend": True, "legend": {"orientation": "h", "traceorder": "normal", "y": 1.0, "yanchor": "bottom"}}
    more = {**legend, "barmode": "stack", "margin": {"l": 44, "r": 8, "t": 24, "b": 28}}
    return Panel(title, f"{title}: {said}", {"data": data, "layout": layout(steps_axis([view]), {}, **more)})


def _steps(view: View) -> list[Any]:
    """The run's steps that the view shows."""
    shown = {consumption.step for consumption in view.consumptions}
    return [step for step in view.run.steps if step.step in shown]
