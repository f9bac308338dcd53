"""A roofline of a comparison: how many operations a step does for each byte of weights it reads, and how fast.

Below the sloping roof a system waits for memory, below the flat one for arithmetic. Drawn from
{py:class}`~reference_impl.bench.results.Results`, as a page that fetches nothing or as a picture (SVG).
"""

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reference_impl.bench.comparison import Row
from reference_impl.bench.results import HEADS, Results, cells
from reference_impl.config.errors import ConfigError

COLOURS = {"reference": "#4c86c0", "megatron": "#cf7420", "huggingface": "#5b9a5b", "vllm": "#9b6bb3"}
SYMBOLS = {"reference": "circle", "megatron": "square", "huggingface": "diamond", "vllm": "cross"}
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 480, 360, 44, 40, 28, 16  # pixels


@dataclass(frozen=True)
class Roofline:
    """The roofs and the points, in operations for each byte of weights, and in GFLOP/s."""

    results: Results

    def intensity(self, batch: int) -> float:
        """Operations that a step of `batch` requests does for each byte of weights."""
        work = self.results.work
        return batch * work.flop_per_token / work.weight_bytes

    def reached(self, row: Row) -> float:
        """GFLOP/s of a row."""
        return row.decode_tokens_per_second * self.results.work.flop_per_token / 1e9

    @property
    def flat(self) -> float:
        """GFLOP/s of matrix products in the precision of the run."""
        return self.results.limits.gemm_gflop_s[self.results.dtype]

    @property
    def ridge(self) -> float:
        """Where the roofs meet: from this intensity on, arithmetic is the limit."""
        return self.flat / self.results.limits.read_gb_s

    @property
    def roof(self) -> list[tuple[float, float]]:
        """The corners of the roofs, from half the smallest intensity to twice the largest."""
        across = [self.ridge, *(self.intensity(row.batch) for row in self.results.rows)]
        low, high = min(across) / 2, max(across) * 2
        return [(low, low * self.results.limits.read_gb_s), (self.ridge, self.flat), (high, self.flat)]

    def points(self) -> Iterator[tuple[str, list[Row]]]:
        """The rows of each system."""
        for name in dict.fromkeys(row.backend for row in self.results.rows):
            yield name, [row for row in self.results.rows if row.backend == name]

    @property
    def said(self) -> str:
        """The picture in words."""
        reached = ", ".join(f"{row.backend} {self.reached(row):.3g} at batch {row.batch}" for row in self.results.rows)
        roofs = f"{self.results.limits.read_gb_s:.1f} GB/s and {self.flat:.0f} GFLOP/s"
        return f"Roofline of {self.results.model} under {roofs}; GFLOP/s reached: {reached}."


def write_plot(results: Results, path: Path) -> None:
    """Draw to `path`, which ends in .html or .svg.

    Raises `OSError`, and {py:exc}`~reference_impl.config.errors.ConfigError` for another ending.
    """
    drawn = drawing_for(path)(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawn, "utf-8")


def drawing_for(path: Path) -> Callable[[Results], str]:
    """What draws a file of this ending; to be asked before a long run, so that a wrong ending costs nothing."""
    draw = {".html": page, ".svg": picture}.get(path.suffix)
    if draw is None:
        raise ConfigError(f"--plot: {path}; expected a name that ends in .html or .svg")
    return draw


def page(results: Results) -> str:
    """The roofline, drawn by plotly.js as the staleness report draws its own, over the table."""
    from reference_impl.staleness.report.document import document
    from reference_impl.staleness.report.figures import layout
    from reference_impl.staleness.report.table import as_json, plain_table

    roofline = Roofline(results)
    roof = roofline.roof
    traces: list[dict[str, object]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "limit",
            "x": [x for x, _ in roof],
            "y": [y for _, y in roof],
            "line": {"color": "#888", "width": 2},
            "hovertemplate": "limit %{y:.0f} GFLOP/s<extra></extra>",
        }
    ]
    for name, rows in roofline.points():
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [roofline.intensity(row.batch) for row in rows],
                "y": [roofline.reached(row) for row in rows],
                "text": [
                    f"{name}, batch {row.batch}<br>{row.decode_tokens_per_second:.1f} tokens/s, "
                    f"{row.limit_share:.0%} of the limit"
                    for row in rows
                ],
                "marker": {"color": COLOURS[name], "symbol": SYMBOLS[name], "size": 10},
                "hovertemplate": "%{text}<br>%{y:.0f} GFLOP/s<extra></extra>",
            }
        )
    margin = {"l": 56, "r": 8, "t": 8, "b": 44}
    figure = {
        "data": traces,
        "layout": layout(
            {"type": "log", "title": {"text": "operations for each byte of weights"}},
            {"type": "log", "title": {"text": "GFLOP/s"}},
            height=420,
            margin=margin,
            showlegend=True,
        ),
    }
    title = html.escape(f"{results.model}: decoding under this machine's limits")
    notes = "".join(f"<p>{html.escape(line)}</p>" for line in results.conditions())
    return document(
        title,
        f"<h1>{title}</h1>\n{notes}\n"
        f'<figure><div class="plot" id="roofline" role="img" aria-label="{html.escape(roofline.said)}" '
        f'style="height:420px"></div></figure>\n'
        f"{plain_table([('', head) for head in HEADS], map(cells, results.rows), 'Systems')}\n"
        f'<script id="figures" type="application/json">{as_json({"roofline": figure})}</script>',
    )


def picture(results: Results) -> str:
    """The roofline as SVG, both axes logarithmic; it follows the reader's light or dark scheme."""
    roofline = Roofline(results)
    roof, reached = roofline.roof, [roofline.reached(row) for row in results.rows]
    across = _scale(roof[0][0], roof[-1][0], LEFT, WIDTH - RIGHT)
    up = _scale(min([roof[0][1], *reached]) / 1.5, max([roofline.flat, *reached]) * 1.5, HEIGHT - BOTTOM, TOP)
    line = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in roof)
    parts = [
        f'<text x="{LEFT}" y="16">GFLOP/s</text>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">operations for each byte of weights</text>',
    ]
    for value in _ticks(roof[0][0], roof[-1][0]):
        parts.append(f'<text x="{across(value):.1f}" y="{HEIGHT - 24}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(min([roof[0][1], *reached]) / 1.5, roofline.flat * 1.5):
        parts.append(f'<path d="M{LEFT} {up(value):.1f}H{WIDTH - RIGHT}" stroke="#8884"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(f'<polyline points="{line}" fill="none" stroke="#888" stroke-width="2"/>')
    for number, (name, rows) in enumerate(roofline.points()):
        mark = f'fill="{COLOURS[name]}"'
        for row in rows:
            x, y = across(roofline.intensity(row.batch)), up(roofline.reached(row))
            parts.append(f"<g {mark}><title>{name}, batch {row.batch}</title>{_shape(SYMBOLS[name], x, y)}</g>")
        x, y = WIDTH - 130, HEIGHT - BOTTOM - 90 + 20 * number
        parts.append(f'<g {mark}>{_shape(SYMBOLS[name], x, y)}</g><text x="{x + 12}" y="{y + 4}">{name}</text>')
    style = "text { fill: #222 } @media (prefers-color-scheme: dark) { text { fill: #ddd } }"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img">',
        f"<title>{html.escape(roofline.said)}</title>",
        f"<style>{style}</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    """Pixels of a value on a logarithmic axis."""
    return lambda value: first + (last - first) * math.log(value / low) / math.log(high / low)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade within the bounds."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [step * 10**decade for decade in decades for step in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def _shape(symbol: str, x: float, y: float) -> str:
    if symbol == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    if symbol == "square":
        return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'
    if symbol == "diamond":
        return f'<path d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'
    return f'<path d="M{x - 2:.1f} {y - 6:.1f}h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>'
