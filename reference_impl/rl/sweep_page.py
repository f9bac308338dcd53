"""The page of a sweep: each run's reward by step, and reward against staleness. It fetches nothing."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_impl.rl.sweep import LAST, Outcome
from reference_impl.staleness.report.document import document
from reference_impl.staleness.report.figures import layout
from reference_impl.staleness.report.palette import colours_of
from reference_impl.staleness.report.table import as_json, plain_table

HEADS = ("setting", "reward", "policy staleness", "KV staleness", "completion gap", "probability error", "steps/s")
METRICS = (
    "reward",
    "token_mean_policy_staleness",
    "token_mean_kv_cache_staleness",
    "mean_completion_gap",
    "token_mult_prob_error",
)
HEIGHT = 300


def write_page(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw to `path`."""
    colours = colours_of(range(len(outcomes)))
    figures = {
        "reward": _figure(
            [
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": outcome.name,
                    "y": outcome.curve("reward"),
                    "line": {"color": colours[number], "width": 2},
                    "hovertemplate": "step %{x}: %{y:.3f}",
                }
                for number, outcome in enumerate(outcomes)
            ],
            "training step",
            "reward",
        ),
        "against": _figure(
            [
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": outcome.name,
                    "x": [outcome.late("token_mean_policy_staleness")],
                    "y": [outcome.late("reward")],
                    "marker": {"color": colours[number], "size": 12},
                    "hovertemplate": "staleness %{x:.2f}, reward %{y:.3f}",
                }
                for number, outcome in enumerate(outcomes)
            ],
            "policy staleness of a token",
            "reward",
        ),
    }
    said = {
        "reward": "Reward by training step: "
        + "; ".join(f"{outcome.name} ends at {outcome.late('reward'):.2f}" for outcome in outcomes),
        "against": "Reward against policy staleness: "
        + "; ".join(
            f"{outcome.name}: {outcome.late('reward'):.2f} at {outcome.late('token_mean_policy_staleness'):.2f}"
            for outcome in outcomes
        ),
    }
    plots = "".join(
        f'<figure><div class="plot" id="{name}" role="img" aria-label="{html.escape(said[name])}" '
        f'style="height:{HEIGHT}px"></div></figure>'
        for name in figures
    )
    rows = [
        (outcome.name, *(f"{outcome.late(metric):.3f}" for metric in METRICS), f"{outcome.steps_per_second:.2f}")
        for outcome in outcomes
    ]
    title = f"{len(outcomes)} runs"
    body = (
        f'<h1>{title}</h1>\n<div class="row">{plots}</div>\n'
        f'<p class="quiet">Points and table: means over the last {LAST} steps of each run.</p>\n'
        f"{plain_table([('', head) for head in HEADS], rows, 'Runs')}\n"
        f'<script id="figures" type="application/json">{as_json(figures)}</script>'
    )
    path.write_text(document(title, body), "utf-8")


def _figure(data: list[dict[str, Any]], x: str, y: str) -> dict[str, Any]:
    axes = {"title": {"text": x}, "rangemode": "tozero"}, {"title": {"text": y}, "rangemode": "tozero"}
    margin = {"l": 52, "r": 8, "t": 8, "b": 44}
    legend: dict[str, Any] = {"showlegend": True, "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"}}
    return {"data": data, "layout": layout(*axes, height=HEIGHT, margin=margin, **legend)}
