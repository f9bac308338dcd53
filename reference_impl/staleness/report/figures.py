"""What the report's charts have in common: a panel, the two styles in which runs are drawn, and a quiet layout.

A figure is the plain JSON that plotly.js takes; making it loads no library.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

type Figure = dict[str, Any]

HEIGHT = 180  # pixels


@dataclass(frozen=True)
class Panel:
    """One chart of a row: its title, what a reader who does not see it is told, and the figure.

    Without a figure `said` stands in its place.
    """

    title: str
    said: str
    figure: Figure | None = None


@dataclass(frozen=True)
class Style:
    """How one run is drawn: line and filled bars, or dashes and hollow bars, so that no colour is needed to tell."""

    colour: str
    dash: str
    symbol: str
    hollow: bool

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "dash": self.dash, "width": 2}

    @property
    def band(self) -> str:
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.18)"

    def bars(self, colours: Iterable[str] | None = None) -> dict[str, Any]:
        """The marker of bars, all in the style's colour or each in its own."""
        edges = self.colour if colours is None else list(colours)
        fill = "rgba(0,0,0,0)" if self.hollow else edges
        return {"color": fill, "line": {"color": edges, "width": 2 if self.hollow else 0}}


STYLES = (Style("#4c86c0", "solid", "circle", False), Style("#cf7420", "dash", "diamond-open", True))


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """No frame, no zoom, backgrounds that let the page's own show: a chart is read, and a finger is free to scroll."""
    quiet = {"fixedrange": True, "zeroline": False, "automargin": False}
    return {
        "height": HEIGHT,
        "margin": {"l": 44, "r": 8, "t": 8, "b": 28},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hoverlabel": {"font": {"family": "system-ui, sans-serif"}, "align": "left"},
        "showlegend": False,
        "dragmode": False,
        "xaxis": {**quiet, "showgrid": False, "ticks": "", **x},
        "yaxis": {**quiet, "showgrid": True, "nticks": 5, **y},
        **more,
    }


def beside(number: int, count: int, step: float = 1.0) -> dict[str, float]:
    """Where bar `number` of `count` that share a place stands; places are `step` apart. Plotly would guess the width."""
    width = 0.8 * step / count
    return {"width": round(width, 6), "offset": round(number * width - 0.4 * step, 6)}
