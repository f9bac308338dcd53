"""The report's strips: each sequence's generated tokens as a row of cells, by policy epoch, KV epoch, oldest attended epoch.

One Plotly figure of three heat maps, one above the other, as the plain JSON that plotly.js takes.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from reference_impl.staleness.report.figures import Figure, layout
from reference_impl.staleness.report.palette import Colours
from reference_impl.staleness.report.tokens import Token, shortened
from reference_impl.staleness.runs import SequenceRecord

KINDS = {"policy": "Policy epoch", "kv": "KV epoch", "attended": "Oldest attended KV epoch"}
LABEL_WIDTH = 18  # characters of the prompt beside its strip
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 168, 12, 30, 44, 40  # pixels around and between the plots
ROW = 26  # pixels a strip
LEAST = 32  # cells that a strip has room for: a short answer's are not wider than others'

type Rows = Mapping[int, Sequence[Token]]  # the tokens that are drawn, by the sequence's index


def figure_size(rows: Rows) -> tuple[int, int]:
    """Least width and exact height in pixels at which every token is a cell that a pointer can hit."""
    tokens = max(map(len, rows.values()), default=0)
    # A browser's canvas ends near 16000 pixels; past 1200 tokens the cells get narrower instead.
    width = LEFT + RIGHT + 10 * min(max(tokens, LEAST), 1200)
    return width, TOP + BOTTOM + 2 * BETWEEN + len(KINDS) * ROW * len(rows)


def strips_figure(sequences: Sequence[SequenceRecord], rows: Rows, colours: Colours) -> Figure:
    """x: index of the generated token, y: sequence, in the order given. `colours` gives every epoch's, oldest first.

    What is said of a token lies in `shared`, once for the three heat maps.
    """
    _, height = figure_size(rows)
    inner = height - TOP - BOTTOM
    columns = max(map(len, rows.values()), default=0)
    drawn = [rows[sequence.index] for sequence in sequences]
    ranks = {epoch: rank for rank, epoch in enumerate(colours)}
    axes: dict[str, Any] = {}
    traces, titles = [], []
    for place, (kind, title) in enumerate(KINDS.items()):
        number = str(place + 1) if place else ""
        top = 1 - place * (ROW * len(rows) + BETWEEN) / inner
        bottom = max(top - ROW * len(rows) / inner, 0.0)
        traces.append(
            {
                "type": "heatmap",
                "name": title,
                "z": [[ranks[getattr(token, kind)] for token in tokens] for tokens in drawn],
                "hovertemplate": "%{customdata}<extra></extra>",
                "hoverongaps": False,
                "colorscale": _steps(list(colours.values())),
                "zmin": -0.5,
                "zmax": len(colours) - 0.5,
                "showscale": False,
                "xgap": 1 if columns <= 400 else 0,
                "ygap": 6,
                "xaxis": f"x{number}",
                "yaxis": f"y{number}",
            }
        )
        axes |= _axes(number, sequences, columns, (bottom, top), last=place == len(KINDS) - 1)
        titles.append(_title(title, top))
    return {
        "data": traces,
        "shared": {"customdata": [["\n".join(token.facts) for token in tokens] for tokens in drawn]},
        "layout": layout(
            {},
            {},
            height=height,
            margin={"l": LEFT, "r": RIGHT, "t": TOP, "b": BOTTOM},
            annotations=titles,
            **axes,
        ),
    }


def _axes(
    number: str, sequences: Sequence[SequenceRecord], columns: int, domain: tuple[float, float], last: bool
) -> dict[str, Any]:
    quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "ticks": ""}
    below = {"title": {"text": "index of the generated token", "standoff": 8, "font": {"size": 12}}} if last else {}
    return {
        f"xaxis{number}": {
            **quiet,
            "anchor": f"y{number}",
            "range": [-0.5, max(columns, LEAST) - 0.5],
            "tick0": 0,
            "dtick": next(
                step for power in range(9) for step in (10**power, 2 * 10**power, 5 * 10**power) if columns <= 12 * step
            ),
            "tickformat": "d",
            "showticklabels": last,
            **below,
        },
        f"yaxis{number}": {
            **quiet,
            "anchor": f"x{number}",
            "domain": [round(edge, 6) for edge in domain],
            "range": [len(sequences) - 0.5, -0.5],
            "tickvals": list(range(len(sequences))),
            "ticktext": [html.escape(label(sequence)) for sequence in sequences],
            "ticklabelstandoff": 8,
        },
    }


def _title(text: str, top: float) -> dict[str, Any]:
    """Over its plot and at the far left, where it is seen without scrolling."""
    place = {
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "xshift": -LEFT,
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
    }
    return {"text": f"<b>{text}</b>", "showarrow": False, "font": {"size": 13}, "yshift": 4, **place}


def label(sequence: SequenceRecord) -> str:
    """The sequence's index and what tells people which it is: its prompt, or its request's name."""
    if sequence.error is not None and not sequence.num_generated:
        said = "(failed)"
    elif sequence.prompt:
        said = shortened(sequence.prompt, LABEL_WIDTH)
    else:
        request = sequence.record.request if sequence.record else None
        said = shortened(request, LABEL_WIDTH) if isinstance(request, str) else "(no text)"
    return f"{sequence.index} · {said}"


def _steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """A colour scale with hard edges: each colour fills its equal share."""
    share = 1 / len(colours)
    return [(min(edge * share, 1.0), colour) for rank, colour in enumerate(colours) for edge in (rank, rank + 1)]
