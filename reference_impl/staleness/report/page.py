"""The report as one HTML page: of a run, of several in sections, or of two drawn over each other.

Nothing is fetched, and plotly is loaded when a page is written, not when this module is imported.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from reference_impl.staleness.report.articles import article, epoch_classes, legend
from reference_impl.staleness.report.charts import events, gap_and_events_over_steps, staleness_over_steps
from reference_impl.staleness.report.document import document
from reference_impl.staleness.report.figures import STYLES, Figure, Panel
from reference_impl.staleness.report.histograms import rollouts_by_average, rollouts_by_gap, tokens_by_staleness
from reference_impl.staleness.report.learning import learning_over_steps
from reference_impl.staleness.report.numbers import ROLLOUTS, STALENESS, cells, coverage, differences, headline
from reference_impl.staleness.report.palette import Colours, epoch_colours
from reference_impl.staleness.report.strips import figure_size, strips_figure
from reference_impl.staleness.report.table import as_json, plain_table, rollout_table
from reference_impl.staleness.report.tokens import generated_tokens
from reference_impl.staleness.report.view import View, refuse_unknown, view_of
from reference_impl.staleness.runs import Run, SequenceRecord

MOST_SEQUENCES = 16
MOST_TOKENS = 12_000  # drawn one by one; they are most of what a page with plotly.js packed weighs


def write_html(run: Run, path: str | Path, *, step: int | None = None, show: Sequence[int] | None = None) -> None:
    """Write the report of `run` to `path` as one HTML file that fetches nothing, plotly.js included (about 2 MB).

    `step`
    : The training step shown, of those that the run names; for a run that names none, the step at which staleness is
      shown (default: the newest epoch in the run).

    `show`
    : Indices of the sequences whose tokens are drawn one by one. Default: the first 16, or as many as have 12,000
      tokens together; a sequence's tokens past its share of these are left out, and the page says so.

    Raises `ValueError` for a step or an index that the run does not have, and `OSError` when `path` cannot be written.
    """
    write_views([view_of(run, step=step)], path, show=show)


def write_views(
    views: Sequence[View], path: str | Path, *, show: Sequence[int] | None = None, compare: bool = False
) -> None:
    """Write one page for several runs: a section a run, or, to compare two, one set of charts with both.

    `show` and errors are as in `write_html`; an index has to be in one of the runs.
    """
    refuse_unknown(views, show)
    page = _Page(epoch_colours(*(view.run for view in views)), show)
    if compare:
        first, second = views
        title = f"{first.full_name} and {second.full_name}"
        body = page.comparison(first, second)
    elif len(views) == 1:
        title = views[0].title
        body = f"<h1>{html.escape(title)}</h1>\n{page.section(views[0], level=2)}"
    else:
        title = f"{len(views)} runs"
        links = "".join(f'<li><a href="#run{n}">{html.escape(v.full_name)}</a></li>' for n, v in enumerate(views))
        sections = "\n".join(
            f'<section class="run" id="run{number}"><h2>{html.escape(view.full_name)}</h2>\n'
            f"{page.section(view, level=3)}</section>"
            for number, view in enumerate(views)
        )
        body = f"<h1>{title}</h1>\n<nav><ul>{links}</ul></nav>\n{sections}"
    # Half a character (a lone surrogate) has no UTF-8: it is shown as "?", and the page is written all the same.
    text = document(html.escape(title), f"{body}\n{page.data()}")
    Path(path).write_text(text, encoding="utf-8", errors="replace", newline="\n")


def chosen_sequences(view: View, show: Sequence[int] | None) -> list[SequenceRecord]:
    """The sequences whose tokens are drawn."""
    if show is not None:
        return [sequence for sequence in view.run.sequences if sequence.index in show]
    tokens = 0
    chosen: list[SequenceRecord] = []
    for sequence in view.run.sequences[:MOST_SEQUENCES]:
        tokens += sequence.num_generated
        if chosen and tokens > MOST_TOKENS:
            break
        chosen.append(sequence)
    return chosen


class _Page:
    """Parts of a page; figures are kept until `data` puts them behind the body."""

    def __init__(self, colours: Colours, show: Sequence[int] | None) -> None:
        self.colours = colours
        self.show = show
        self.figures: dict[str, Figure] = {}

    def section(self, view: View, level: int) -> str:
        """Everything about one run; its headings are of `level`."""
        several = len(view.consumptions) > 1
        h = f"h{level}"
        return f"""<p class="quiet">{view.at}</p>
{_quiet(bool(coverage(view)), coverage(view))}
{_numbers(headline(view))}
{self._learning([view], h) if several else ""}
{self._over_steps([view], h) if several else self._one_step(view, h)}
{self._histograms([view], h)}
<{h}>Rollouts</{h}>
{rollout_table(view)}
{self._sequences(view, level)}"""

    def comparison(self, first: View, second: View) -> str:
        """Both runs in the same charts, and every metric of both."""
        both = [first, second]
        several = any(len(view.consumptions) > 1 for view in both)
        names = ["metric", "first", "second", "difference", "unit", *(["over steps"] if several else [])]
        rows = [(d.name, *d.written, d.unit, d.how)[: len(names)] for d in differences(first, second)]
        strips = (
            ""
            if self.show is None
            else "\n".join(f"<h2>{html.escape(view.full_name)}</h2>\n{self._sequences(view, 3)}" for view in both)
        )
        return f"""<h1>Two runs compared</h1>
{_key(both)}
{self._learning(both, "h2") if several else ""}
{self._over_steps(both, "h2") if several else ""}
{self._histograms(both, "h2")}
<h2>Metrics</h2>
<p class="quiet">The difference is the second run's value less the first's.</p>
{plain_table([("", name) for name in names], rows, "Metrics of both runs")}
{strips}"""

    def data(self) -> str:
        """The figures, for the page's script, and the colours of epochs."""
        return f'{epoch_classes(self.colours)}\n<script id="figures" type="application/json">{as_json(self.figures)}</script>'

    def _learning(self, views: Sequence[View], h: str) -> str:
        panels = learning_over_steps(views)
        return f"<{h}>Learning</{h}>\n{self._row(panels)}" if panels else ""

    def _over_steps(self, views: Sequence[View], h: str) -> str:
        table = ""
        if len(views) == 1:
            rows = [
                (str(consumption.step), *cells(values, [*STALENESS, *ROLLOUTS]))
                for consumption, values in zip(views[0].consumptions, views[0].measured, strict=True)
            ]
            heads = [("", "step"), *((column.group, column.name) for column in (*STALENESS, *ROLLOUTS))]
            table = f"<details><summary>As a table</summary>{plain_table(heads, rows, 'Training steps')}</details>"
        return f"""<{h}>Staleness over training steps</{h}>
<p class="quiet">How many training steps older a rollout's oldest sampled token is than the step that consumed it. Line:
mean over rollouts. Band: from the smallest to the largest.</p>
{self._row(staleness_over_steps(views))}
<{h}>Completion gap and cache events over training steps</{h}>
<p class="quiet">Completion gap: training steps between the end of a rollout and its consumption.</p>
{self._row(gap_and_events_over_steps(views))}
{table}"""

    def _one_step(self, view: View, h: str) -> str:
        values = view.measured[0]
        rows = [
            (STALENESS[first].group, *cells(values, STALENESS[first : first + 4]))
            for first in range(0, len(STALENESS), 4)
        ]
        heads = [("", ""), *(("", name) for name in ("mean", "max", "min", "stamped"))]
        return f"""<{h}>Staleness at step {view.consumptions[0].step}</{h}>
<p class="quiet">How many training steps older a rollout's oldest sampled token is than the step, over rollouts.
Stamped: the share of all their sampled tokens with an epoch.</p>
{plain_table(heads, rows, "Staleness")}"""

    def _histograms(self, views: Sequence[View], h: str) -> str:
        several = any(len(view.consumptions) > 1 for view in views)
        at_end = (
            ""
            if several
            else f"""<{h}>Completion gap and cache events</{h}>
<p class="quiet">Completion gap: training steps between the end of a rollout and its consumption.</p>
{self._row([rollouts_by_gap(views), events(views)])}"""
        )
        return f"""<{h}>Tokens by staleness</{h}>
<p class="quiet">Share of all consumed tokens. Policy: age of the weights that sampled the token. KV: of those that wrote
the keys and values cached for it. Attended KV: of the oldest keys and values that its sampling attended to.</p>
{self._row(tokens_by_staleness(views))}
<{h}>Rollouts by average staleness</{h}>
<p class="quiet">Share of the consumed rollouts, by the mean over their tokens.</p>
{self._row(rollouts_by_average(views))}
{at_end}"""

    def _row(self, panels: Sequence[Panel]) -> str:
        return f'<div class="row">{"".join(map(self._panel, panels))}</div>'

    def _panel(self, panel: Panel) -> str:
        title = html.escape(panel.title[:1].upper() + panel.title[1:])
        if panel.figure is None:
            return f'<figure><figcaption>{title}</figcaption><p class="unknown">{html.escape(panel.said)}</p></figure>'
        return f"<figure><figcaption>{title}</figcaption>{self._plot(panel.figure, panel.said)}</figure>"

    def _plot(self, figure: Figure, said: str) -> str:
        name = f"figure{len(self.figures)}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return f'<div class="plot" id="{name}" role="img" aria-label="{html.escape(said)}" style="height:{height}px"></div>'

    def _sequences(self, view: View, level: int) -> str:
        chosen = chosen_sequences(view, self.show)
        if not chosen:
            return ""
        share = MOST_TOKENS if len(chosen) == 1 or self.show is None else max(MOST_TOKENS // len(chosen), 1)
        rows = {sequence.index: generated_tokens(sequence, share) for sequence in chosen}
        width, _ = figure_size(rows)
        h, total = f"h{level}", len(view.run.sequences)
        plot = self._plot(strips_figure(chosen, rows, self.colours), "Strips of tokens, also given as text below")
        name = f"figure{len(self.figures) - 1}"
        some = _quiet(
            len(chosen) < total,
            f"{len(chosen)} of {total:,} sequences; <code>genref report --show</code> takes the indices of others.",
        )
        key = _quiet(
            any(sequence.tokens for sequence in chosen),
            "Fill: policy epoch. Underline: KV epoch. Point at a token for its numbers.",
        )
        articles = "\n".join(article(sequence, rows[sequence.index], level + 1) for sequence in chosen)
        return f"""<{h}>Checkpoints</{h}>
{legend(view, self.colours)}
<{h}>Tokens by epoch</{h}>
{some}
<p class="quiet">A strip a sequence, a cell a generated token. Policy epoch: the weights that sampled the token. KV epoch:
the weights that wrote the keys and values now cached for it. Oldest attended KV epoch: the oldest keys and values that
its sampling attended to. Point at a cell for all that is known of it.</p>
<figure class="strips"><div style="min-width:{width}px">{plot}</div></figure>
<{h}>Sequences</{h}>
{key}
<div data-figure="{name}">
{articles}
</div>"""


def _quiet(said: bool, text: str) -> str:
    """A note, if it is to be `said`."""
    return f'<p class="quiet">{text}</p>' if said else ""


def _numbers(numbers: dict[str, str]) -> str:
    items = "".join(f"<div><dt>{name}</dt><dd>{number}</dd></div>" for name, number in numbers.items())
    return f'<dl class="numbers">{items}</dl>'


def _key(views: Sequence[View]) -> str:
    """Which run is drawn how."""
    items = []
    for which, view, style in zip(("First", "Second"), views, STYLES, strict=True):
        dashes = ' stroke-dasharray="6 4"' if style.hollow else ""
        fill = "none" if style.hollow else style.colour
        items.append(
            f'<li><svg width="64" height="16" aria-hidden="true"><g stroke="{style.colour}" stroke-width="2">'
            f'<path d="M0 8H36"{dashes}/><rect x="46" y="2" width="14" height="12" fill="{fill}"/></g></svg>'
            f"<span>{which}: {html.escape(view.full_name)}<br><small>{view.at}</small></span></li>"
        )
    return f'<ul class="key">{"".join(items)}</ul>'
