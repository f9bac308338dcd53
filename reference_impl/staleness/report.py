"""The report of a run: one self-contained page for a browser, or coloured text for a terminal.

Both show every generated token in the colour of the checkpoint that sampled it. Plotly and rich are loaded when a
report is written, not when this module is imported.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.figure import figure_size, strips_figure
from reference_impl.staleness.page import document
from reference_impl.staleness.palette import epoch_colours, ink_on
from reference_impl.staleness.runs import Run, SequenceRecord
from reference_impl.staleness.tokens import Token, control_pictures, generated_tokens

if TYPE_CHECKING:
    from rich.console import Console


def write_html(run: Run, path: str | Path) -> None:
    """Write the run's report to `path` as one HTML file that fetches nothing, plotly.js included (about 5 MB).

    Counts are of generated tokens; a sequence counts as sampled across an update when its generated tokens carry
    two or more policy epochs. Raises `OSError` when `path` cannot be written.
    """
    colours = epoch_colours(run)
    title = html.escape(f"{run.header['model']} on {run.header['backend']}, {run.header['mode']}")
    articles = "\n".join(_article(record, colours) for record in run.sequences)
    body = f"""<h1>{title}</h1>
<p class="quiet">How stale each generated token is: one colour an epoch, one epoch a policy checkpoint.</p>
{_numbers(run)}
<h2>Checkpoints</h2>
{_legend(run, colours)}
<h2>Tokens by epoch</h2>
{_plot(run, colours)}
<h2>Sequences</h2>
<p class="quiet">Fill: policy epoch. Underline: KV epoch. Point at a token for its numbers.</p>
{articles}"""
    # Half a character (a lone surrogate) has no UTF-8: it is shown as "?", and the page is written all the same.
    Path(path).write_text(document(title, body), encoding="utf-8", errors="replace", newline="\n")


def _numbers(run: Run) -> str:
    stamped = [record for record in run.sequences if record.has_epochs]
    unfinished = [record for record in run.sequences if record.error is not None]
    numbers = {
        "sequences": len(run.sequences),
        "generated tokens": sum(len(record.tokens) for record in stamped),
        "weight updates": len(run.updates),
        "sequences with two or more policy epochs": sum(len(record.generated_policy.runs) > 1 for record in stamped),
        "evictions": sum(record.num_evictions for record in run.sequences),
    }
    if cut := sum(bool(record.token_ids) for record in unfinished):
        numbers["sequences ended early"] = cut
    if len(unfinished) > cut:
        numbers["failed sequences"] = len(unfinished) - cut
    if run.bad_lines:
        numbers["unreadable lines, left out"] = run.bad_lines
    items = "".join(f"<div><dt>{name}</dt><dd>{number}</dd></div>" for name, number in numbers.items())
    return f'<dl class="numbers">{items}</dl>'


def _legend(run: Run, colours: Mapping[int, str]) -> str:
    sampled = Counter(token.policy for record in run.sequences for token in generated_tokens(record))
    said = {run.header["epoch"]: "loaded at the start"}
    for update in run.updates:
        said[update["epoch"]] = f"{update['what']}, after {update['after_tokens']} tokens"
    rows = []
    for epoch, colour in colours.items():
        note = "; ".join(filter(None, [said.get(epoch, ""), f"{sampled[epoch]} tokens sampled"]))
        rows.append(f'<li style="--c:{colour}"><i></i><b>epoch {epoch}</b><span>{html.escape(note)}</span></li>')
    return f'<ul class="legend">{"".join(rows)}</ul>'


def _plot(run: Run, colours: Mapping[int, str]) -> str:
    import plotly.io as pio

    width, height = figure_size(run.sequences)
    config = {"displayModeBar": False, "displaylogo": False, "responsive": True}
    figure = strips_figure(run.sequences, colours)
    plot = pio.to_html(figure, config=config, include_plotlyjs=True, full_html=False, default_height=f"{height}px")
    return f"""<figure>
<figcaption>A strip a sequence, a cell a generated token. Policy epoch: the weights that sampled the token. KV epoch:
the weights that wrote the keys and values now cached for it.</figcaption>
<div class="strips"><div style="min-width:{width}px">{plot}</div></div>
</figure>"""


def _article(record: SequenceRecord, colours: Mapping[int, str]) -> str:
    heading = [f"sequence {record.index}", f"{len(record.tokens)} tokens"]
    if record.has_epochs:
        heading += [f"policy {_runs_in_words(record.generated_policy)}", f"KV {_runs_in_words(record.generated_kv)}"]
    if record.num_evictions:
        heading.append(f"evictions {record.num_evictions}")
    if record.truncated:
        heading.append("cut at the length limit")
    parts = []
    if record.token_ids or record.error is None:
        spans = "".join(_span(token, colours) for token in generated_tokens(record))
        parts += [f'<p class="answer">{spans}</p>']
    if record.error is not None:
        parts += [f'<p class="error">{_how_it_ended(record)}: {_text(record.error)}</p>']
    answer = "\n".join(parts)
    return f"""<article>
<h3>{" · ".join(heading)}</h3>
<p class="prompt">{_text(record.prompt)}</p>
{answer}
</article>"""


def _span(token: Token, colours: Mapping[int, str]) -> str:
    title = html.escape("\n".join(token.facts)).replace("\n", "&#10;")
    style = f"--p:{colours[token.policy]};--k:{colours[token.kv]}"
    return f'<span style="{style}" title="{title}">{_text(token.text)}</span>'


def _text(text: str) -> str:
    # A carriage return is no line of its own, and HTML has no form for the other control characters.
    return html.escape(control_pictures(text.replace("\r\n", "\n"), keep="\n\t"))


def _how_it_ended(record: SequenceRecord) -> str:
    """For a sequence with an error."""
    return "Ended early" if record.token_ids else "Failed"


def _runs_in_words(runs: EpochRuns) -> str:
    """`0 x 12, 1 x 20`: each run's epoch and its tokens."""
    return ", ".join(f"{epoch} x {stop - start}" for start, stop, epoch in runs.spans()) or "none"


def print_strips(run: Run, console: Console) -> None:
    """Print each sequence: its prompt, its answer coloured by policy epoch, and one line with its runs.

    Without colour (`NO_COLOR`, or no terminal) a mark such as `⟦1⟧` stands before each run's first token instead.
    """
    from rich.text import Text

    colours = epoch_colours(run)
    coloured = console.color_system is not None and not console.no_color
    for number, record in enumerate(run.sequences):
        if number:
            console.print()
        lines = [Text(_printable(record.prompt, console), style="italic")]
        if record.token_ids or record.error is None:
            pieces = _coloured_pieces(record, colours) if coloured else _marked_pieces(record, console)
            lines += [Text.assemble(*((_printable(text, console), style) for text, style in pieces))]
        if record.has_epochs:
            policy, kv = _runs_in_words(record.generated_policy), _runs_in_words(record.generated_kv)
            lines += [Text(f"policy {policy} | kv {kv} | evictions {record.num_evictions}", style="dim")]
        if record.error is not None:
            said = f"{_how_it_ended(record).lower()}: {_printable(record.error, console)}"
            lines += [Text(said, style="bold" if coloured else "")]
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)


def _coloured_pieces(record: SequenceRecord, colours: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    # A fill with its own ink reads on a dark terminal as on a light one.
    for token in generated_tokens(record):
        fill = colours[token.policy]
        yield token.text, f"{ink_on(fill)} on {fill}"


def _marked_pieces(record: SequenceRecord, console: Console) -> Iterator[tuple[str, str]]:
    left, right = "⟦⟧" if console.encoding.startswith("utf") else ("[[", "]]")
    before: int | None = None
    for token in generated_tokens(record):
        yield (f"{left}{token.policy}{right}{token.text}" if token.policy != before else token.text), ""
        before = token.policy


def _printable(text: str, console: Console) -> str:
    """`text` without what would act on the terminal, or what its encoding cannot say."""
    safe = control_pictures(text.replace("\r\n", "\n"), keep="\n\t")
    return safe.encode(console.encoding, "replace").decode(console.encoding)
