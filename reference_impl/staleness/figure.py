"""The report's Plotly figure: each sequence's generated tokens as a strip, by policy epoch and by KV epoch."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from reference_impl.staleness.runs import SequenceRecord
from reference_impl.staleness.tokens import Token, generated_tokens, shortened

if TYPE_CHECKING:
    import plotly.graph_objects as go

LABEL_WIDTH = 18  # characters of the prompt beside its strip
LEFT, RIGHT, TOP, BOTTOM, BETWEEN = 168, 12, 30, 44, 44  # pixels around and between the two plots
ROW = 26  # pixels a strip


def figure_size(records: Sequence[SequenceRecord]) -> tuple[int, int]:
    """Least width and exact height in pixels at which every token is a cell that a pointer can hit."""
    tokens = max((len(record.tokens) for record in records), default=0)
    # A browser's canvas ends near 16000 pixels; past 1200 tokens the cells get narrower instead.
    return LEFT + RIGHT + 10 * min(max(tokens, 12), 1200), TOP + BOTTOM + BETWEEN + 2 * ROW * len(records)


def strips_figure(records: Sequence[SequenceRecord], colours: Mapping[int, str]) -> go.Figure:
    """Two heat maps one above the other; x: index of the generated token, y: sequence, in the records' order.

    `colours` gives every epoch's colour, oldest first. Backgrounds are transparent: the page's shows through.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    _, height = figure_size(records)
    rows = [generated_tokens(record) for record in records]
    columns = max(map(len, rows), default=0)
    figure = make_subplots(
        rows=2,
        shared_xaxes=True,
        vertical_spacing=BETWEEN / (height - TOP - BOTTOM),
        subplot_titles=["<b>Policy epoch</b>", "<b>KV epoch</b>"],
    )
    ranks = {epoch: rank for rank, epoch in enumerate(colours)}
    for row, kind in enumerate(("policy", "kv"), 1):
        values = [[ranks[getattr(token, kind)] for token in tokens] for tokens in rows]
        strips = go.Heatmap(
            z=_padded(values, columns),
            customdata=_padded([list(map(_hover, tokens)) for tokens in rows], columns),
            hovertemplate="%{customdata}<extra></extra>",
            hoverongaps=False,
            colorscale=_steps(list(colours.values())),
            zmin=-0.5,
            zmax=len(colours) - 0.5,
            showscale=False,
            xgap=1 if columns <= 400 else 0,
            ygap=6,
            name=f"{kind} epoch",
        )
        figure.add_trace(strips, row=row, col=1)
    labels = [html.escape(_label(record)) for record in records]
    figure.update_yaxes(
        tickvals=list(range(len(records))),
        ticktext=labels,
        range=[len(records) - 0.5, -0.5],
        ticks="",
        ticklabelstandoff=8,
    )
    figure.update_xaxes(range=[-0.5, max(columns, 1) - 0.5], tickformat="d")
    figure.update_xaxes(title_text="index of the generated token", title_standoff=8, title_font_size=12, row=2, col=1)
    _quiet(figure, height)
    return figure


def _quiet(figure: go.Figure, height: int) -> None:
    """No grid, no frame, no zoom: a strip is read, not explored, and a finger must be free to scroll."""
    figure.update_xaxes(showgrid=False, zeroline=False, fixedrange=True)
    figure.update_yaxes(showgrid=False, zeroline=False, fixedrange=True)
    figure.update_annotations(x=0, xanchor="left", xshift=-LEFT, font_size=13, yshift=4)  # seen without scrolling
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": LEFT, "r": RIGHT, "t": TOP, "b": BOTTOM},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        hoverlabel={"font_family": "system-ui, sans-serif", "align": "left"},
        dragmode=False,
    )


def _label(record: SequenceRecord) -> str:
    failed = record.error is not None and not record.token_ids
    said = "(failed)" if failed else shortened(record.prompt, LABEL_WIDTH)
    return f"{record.index} · {said}"


def _hover(token: Token) -> str:
    # Plotly reads a small HTML in hover text, so a token such as "<b>" must be escaped to be seen.
    return "<br>".join(html.escape(fact) for fact in token.facts)


def _padded[T](rows: list[list[T]], columns: int) -> list[list[T | None]]:
    return [[*row, *[None] * (columns - len(row))] for row in rows]


def _steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """A colour scale with hard edges: each colour fills its equal share."""
    share = 1 / len(colours)
    return [(min(edge * share, 1.0), colour) for rank, colour in enumerate(colours) for edge in (rank, rank + 1)]
