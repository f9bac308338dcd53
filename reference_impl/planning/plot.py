"""A sweep as a plot: an interactive page that fetches nothing, or a picture (SVG) that needs no library."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_impl.config.errors import ConfigError
from reference_impl.planning.cache import GIB
from reference_impl.planning.plan import Plan
from reference_impl.planning.sweep import HEADS, Sweep, rows

COLOUR = "#4c86c0"
BAR, GAP, LEFT, LENGTH, RIGHT = 18, 8, 60, 300, 120  # pixels


@dataclass(frozen=True)
class _Chart:
    """One number of each plan: what it is, its unit, and how many digits are shown."""

    title: str
    unit: str
    digits: int
    numbers: list[float]

    @property
    def caption(self) -> str:
        """The title, with the unit where it does not say it already."""
        return self.title if self.title.lower().startswith(self.unit) else f"{self.title}, {self.unit}"

    def written(self) -> list[str]:
        return [f"{number:.{self.digits}f} {self.unit}" for number in self.numbers]


def write_plot(sweep: Sweep, plans: Sequence[Plan], path: Path) -> None:
    """Draw the requests and the memory of each plan to `path`, which ends in .html or .svg.

    Raises `OSError`, and {class}`~reference_impl.config.errors.ConfigError` for another ending.
    """
    draw = {".html": page, ".svg": picture}.get(path.suffix)
    if draw is None:
        raise ConfigError(f"--plot: {path}; expected a name that ends in .html or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(sweep, plans), encoding="utf-8")


def picture(sweep: Sweep, plans: Sequence[Plan]) -> str:
    """The bars of both charts, one under the other, as SVG; it follows the reader's light or dark scheme."""
    parts, top = [], 0
    for chart in _charts(plans):
        parts.append(f'<text x="0" y="{top + 16}" font-weight="bold">{chart.title}, by {sweep.name}</text>')
        top += 28
        longest = max(chart.numbers) or 1
        for value, number, said in zip(sweep.values, chart.numbers, chart.written(), strict=True):
            middle, length = top + BAR - 5, LENGTH * number / longest
            parts += [
                f'<text x="{LEFT - 8}" y="{middle}" text-anchor="end">{html.escape(value)}</text>',
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{COLOUR}"/>',
                f'<text x="{LEFT + length + 6:.1f}" y="{middle}">{said}</text>',
            ]
            top += BAR + GAP
        top += 16
    width = LEFT + LENGTH + RIGHT
    style = "text { fill: #222 } @media (prefers-color-scheme: dark) { text { fill: #ddd } }"
    size = f'viewBox="0 0 {width} {top}" width="{width}" height="{top}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>{html.escape(_title(sweep, plans))}</title>",
        f"<style>{style}</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def page(sweep: Sweep, plans: Sequence[Plan]) -> str:
    """Both charts, drawn by plotly.js as the report draws its own, over the table of the same numbers."""
    from reference_impl.staleness.report.document import document
    from reference_impl.staleness.report.figures import STYLES, Figure, layout
    from reference_impl.staleness.report.table import as_json, plain_table

    figures: dict[str, Figure] = {}
    body = []
    for chart in _charts(plans):
        name = f"figure{len(figures)}"
        bars = {
            "type": "bar",
            "x": list(sweep.values),
            "y": chart.numbers,
            "marker": STYLES[0].bars(),
            "hovertemplate": f"{sweep.name}: %{{x}}<br>%{{y:,.{chart.digits}f}} {chart.unit}<extra></extra>",
        }
        figures[name] = {"data": [bars], "layout": layout({"type": "category"}, {"rangemode": "tozero"})}
        said = html.escape(f"{chart.title}: {', '.join(chart.written())}")
        body.append(
            f'<figure><figcaption>{chart.caption}</figcaption><div class="plot" id="{name}" role="img" '
            f'aria-label="{said}" style="height:{figures[name]["layout"]["height"]}px"></div></figure>'
        )
    title = html.escape(_title(sweep, plans))
    heads = [("", name) for name in (sweep.name, *HEADS)]
    return document(
        title,
        f'<h1>{title}</h1>\n<div class="row">{"".join(body)}</div>\n{plain_table(heads, rows(sweep, plans), "Plans")}\n'
        f'<script id="figures" type="application/json">{as_json(figures)}</script>',
    )


def _charts(plans: Sequence[Plan]) -> list[_Chart]:
    return [
        _Chart("Requests that run at once", "requests", 0, [plan.concurrency.at_once for plan in plans]),
        _Chart("Memory of a GPU", "GiB", 2, [plan.memory.total / GIB for plan in plans]),
    ]


def _title(sweep: Sweep, plans: Sequence[Plan]) -> str:
    return f"{plans[0].model} by {sweep.name}"
