"""The report's histograms: tokens by staleness, rollouts by average staleness and by completion gap.

They are drawn from counts, so a chart costs the same for a thousand tokens a rollout as for one. What has no stamp is a
grey bar of its own, apart on the right, never a bar at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_impl.staleness.consumption import KINDS
from reference_impl.staleness.report.figures import STYLES, Panel, Style, beside, layout
from reference_impl.staleness.report.palette import UNKNOWN
from reference_impl.staleness.report.view import KIND_NAMES, View, nothing

WIDTHS = (0.1, 0.25, 0.5, *(scale * power for power in (1.0, 10.0, 100.0, 1000.0) for scale in (1, 2, 5)))
MOST_BINS = 40
TICKS = (0.1, 0.2, 0.5, *(scale * power for power in (1, 10, 100, 1000) for scale in (1, 2, 5)))


@dataclass(frozen=True)
class Counts:
    """How many tokens or rollouts fall into each bin, by its lower edge, and how many have no value."""

    of: Mapping[float, int]
    unknown: int

    @property
    def total(self) -> int:
        return sum(self.of.values()) + self.unknown

    @property
    def last(self) -> float:
        return max(self.of, default=0.0)


# The bins' width (0: whole numbers, each its own bar), and each kind's counts, one a run.
type _Binned = tuple[float, Mapping[str, Sequence[Counts]]]


@dataclass(frozen=True)
class _Scale:
    """The horizontal axis: bins of `width` (0: whole numbers), the last one's edge, and whether a grey bar follows."""

    width: float
    last: float
    unknown: bool

    @property
    def step(self) -> float:
        return self.width or 1.0

    @property
    def beyond(self) -> float:
        """Where the grey bar stands: with a gap that grows with the axis, so that it is seen as apart."""
        return self.last + self.step + max(self.step, 0.08 * (self.last + self.step))

    @property
    def axis(self) -> dict[str, Any]:
        apart = next((apart for apart in TICKS if self.last <= 5 * apart and (self.width or apart >= 1)), self.last)
        ticks = [round(apart * number, 6) for number in range(int(self.last / (apart or 1)) + 1)]
        labels = [f"{tick:g}" for tick in ticks]
        if self.unknown:
            ticks, labels = [*ticks, self.beyond], [*labels, "not known"]
        end = (self.beyond if self.unknown else self.last) + 0.6 * self.step + self.width / 2
        return {"range": [-0.6 * self.step + self.width / 2, end], "tickvals": ticks, "ticktext": labels}


def tokens_by_staleness(views: Sequence[View]) -> list[Panel]:
    """For each kind the share of the consumed tokens at each staleness."""
    counts = {kind: [Counts(*view.tokens(kind)) for view in views] for kind in KINDS}
    return _row(_whole(counts), views, "tokens")


def rollouts_by_average(views: Sequence[View]) -> list[Panel]:
    """For each kind the share of the consumed rollouts at each mean staleness over their tokens."""
    means = {kind: [view.means(kind) for view in views] for kind in KINDS}
    largest = max(float(np.max(values[~np.isnan(values)], initial=0)) for each in means.values() for values in each)
    width = _width(largest, 0.1)
    return _row(
        (width, {kind: [_binned(values, width) for values in each] for kind, each in means.items()}), views, "rollouts"
    )


def rollouts_by_gap(views: Sequence[View]) -> Panel:
    """The share of the consumed rollouts at each completion gap."""
    gaps = [np.concatenate([consumption.completion_gap for consumption in view.consumptions]) for view in views]
    title = "Completion gap"
    width, counts = _whole({title: [_binned(gap, 1.0) for gap in gaps]})
    return _panel(title, counts[title], width, None, views, "rollouts")


def _width(largest: float, least: float) -> float:
    """A round width of bins, `least` at least, of which not too many are needed."""
    widths = (width for width in WIDTHS if width >= least)
    return next((width for width in widths if largest <= MOST_BINS * width), largest / MOST_BINS)


def _whole(each: Mapping[str, Sequence[Counts]]) -> _Binned:
    """Counts of whole numbers, taken together in bins only where there are too many of them."""
    width = _width(max(counts.last for of_kind in each.values() for counts in of_kind), 1)
    if width == 1:
        return 0.0, each
    return width, {kind: [_together(counts, width) for counts in of_kind] for kind, of_kind in each.items()}


def _together(counts: Counts, width: float) -> Counts:
    binned: Counter[float] = Counter()
    for value, number in counts.of.items():
        binned[value // width * width] += number
    return Counts(binned, counts.unknown)


def _row(binned: _Binned, views: Sequence[View], what: str) -> list[Panel]:
    """A panel a kind, all on one scale so that they compare at a glance."""
    width, each = binned
    last = max(counts.last for of_kind in each.values() for counts in of_kind)
    panels = [
        _panel(f"{KIND_NAMES[kind]} staleness", counts, width, last, views, what) for kind, counts in each.items()
    ]
    figures = [panel.figure for panel in panels if panel.figure]
    top = max((max(trace["y"]) for figure in figures for trace in figure["data"]), default=1)
    for figure in figures:
        figure["layout"]["yaxis"]["range"] = [0, top * 1.05]
    return panels


def _panel(
    title: str, each: Sequence[Counts], width: float, last: float | None, views: Sequence[View], what: str
) -> Panel:
    if not any(counts.of for counts in each):
        return Panel(title, nothing(views))
    own = max(counts.last for counts in each)
    scale = _Scale(width, own if last is None else last, any(counts.unknown for counts in each))
    drawn = [(counts, style) for counts, style in zip(each, STYLES, strict=False) if counts.total]
    data = [
        {**_bars(counts, style, scale, what), **beside(number, len(drawn), scale.step)}
        for number, (counts, style) in enumerate(drawn)
    ]
    said = "; ".join(_said(counts, what) for counts, _ in drawn)
    vertical = {"tickformat": ".0%", "rangemode": "tozero"}
    figure = {"data": data, "layout": layout(scale.axis, vertical)}
    return Panel(title, f"{title}: {said}", figure)


def _bars(counts: Counts, style: Style, scale: _Scale, what: str) -> dict[str, Any]:
    ordered = sorted(counts.of.items())
    places = [round(edge + scale.width / 2, 6) for edge, _ in ordered]
    names = [f"{edge:g} to {edge + scale.width:g}" if scale.width else f"{edge:g}" for edge, _ in ordered]
    numbers, colours = [count for _, count in ordered], [style.colour] * len(ordered)
    if counts.unknown:
        places, names = [*places, scale.beyond], [*names, "not known"]
        numbers, colours = [*numbers, counts.unknown], [*colours, UNKNOWN]
    return {
        "type": "bar",
        "x": places,
        "y": [round(number / counts.total, 5) for number in numbers],
        "hovertext": [
            f"{name}: {number:,} {what}, {number / counts.total:.1%}"
            for name, number in zip(names, numbers, strict=True)
        ],
        "hoverinfo": "text",
        "marker": style.bars(colours),
    }


def _said(counts: Counts, what: str) -> str:
    often = max(counts.of, key=lambda edge: counts.of[edge], default=None)
    most = "" if often is None else f"most often {often:g}, {counts.of[often] / counts.total:.0%} of {what}, "
    return f"{most}not known {counts.unknown / counts.total:.0%}"


def _binned(values: np.ndarray, width: float) -> Counts:
    known = values[~np.isnan(values)]
    # A mean is a quotient and may come out a little below the edge that it lies on.
    bins, numbers = np.unique(np.floor(known / width + 1e-9), return_counts=True)
    edges = [round(float(place * width), 6) for place in bins]
    return Counts(dict(zip(edges, numbers.tolist(), strict=True)), len(values) - len(known))
