"""The report's strips for a terminal: each answer coloured by policy epoch, or with marks where there is no colour.

rich is loaded by whoever makes the console.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reference_impl.staleness.report.articles import how_it_ended
from reference_impl.staleness.report.palette import UNKNOWN, Colours, epoch_colours, ink_on
from reference_impl.staleness.report.tokens import NOT_KNOWN, control_pictures, generated_tokens, in_words
from reference_impl.staleness.runs import Run, SequenceRecord

if TYPE_CHECKING:
    from rich.console import Console


def print_strips(run: Run, console: Console, sequences: Sequence[SequenceRecord] | None = None) -> None:
    """Print each of the run's (or the given) sequences: prompt, answer coloured by policy epoch, a line with its runs.

    Without colour (`NO_COLOR`, or no terminal) a mark such as `⟦1⟧` stands before each run's first token instead.
    """
    from rich.text import Text

    colours = epoch_colours(run)
    coloured = console.color_system is not None and not console.no_color
    for number, sequence in enumerate(run.sequences if sequences is None else sequences):
        if number:
            console.print()
        lines = [Text(_printable(sequence.prompt or f"sequence {sequence.index}", console), style="italic")]
        if sequence.tokens or (sequence.error is None and not sequence.num_generated):
            pieces = _coloured_pieces(sequence, colours) if coloured else _marked_pieces(sequence, console)
            lines += [Text.assemble(*((_printable(text, console), style) for text, style in pieces))]
        elif sequence.text:
            lines += [Text(_printable(sequence.text, console))]
        if sequence.record is not None:
            policy, kv = in_words(sequence.generated_policy), in_words(sequence.generated_kv)
            evictions = sequence.record.num_evictions
            said = f"policy {policy} | kv {kv} | evictions {NOT_KNOWN if evictions is None else evictions}"
            lines += [Text(said, style="dim")]
        if sequence.error is not None:
            said = f"{how_it_ended(sequence).lower()}: {_printable(sequence.error, console)}"
            lines += [Text(said, style="bold" if coloured else "")]
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)


def _coloured_pieces(sequence: SequenceRecord, colours: Colours) -> Iterator[tuple[str, str]]:
    # A fill with its own ink reads on a dark terminal as on a light one.
    for token in generated_tokens(sequence):
        fill = colours.get(token.policy, UNKNOWN)
        yield token.text or "", f"{ink_on(fill)} on {fill}"


def _marked_pieces(sequence: SequenceRecord, console: Console) -> Iterator[tuple[str, str]]:
    left, right = "⟦⟧" if console.encoding.startswith("utf") else ("[[", "]]")
    before: int | str | None = ""
    for token in generated_tokens(sequence):
        mark = "" if token.policy == before else f"{left}{'?' if token.policy is None else token.policy}{right}"
        yield f"{mark}{token.text or ''}", ""
        before = token.policy


def _printable(text: str, console: Console) -> str:
    """`text` without what would act on the terminal, or what its encoding cannot say."""
    safe = control_pictures(text.replace("\r\n", "\n"), keep="\n\t")
    return safe.encode(console.encoding, "replace").decode(console.encoding)
