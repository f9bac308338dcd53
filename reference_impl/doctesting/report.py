"""Hold what readers see to what was executed, and say where the two differ.

An executed block and a shown one are the same when they agree in file, place and text.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reference_impl.doctesting.case import Case, included_file
from reference_impl.doctesting.oracle import Listing, Shown


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block that was run and found right, where it is written.

    `above` is how many lines of a Python file come before the docstring that the block is in. A listing may show a part
    of the `text` where `partly` is set, as that of an included file does.
    """

    source: Path
    line: int
    last_line: int
    text: str
    above: int = 0
    partly: bool = False

    def is_shown_by(self, listing: Listing) -> bool:
        """Tell whether a reader sees this block as `listing`."""
        in_place = self.line <= listing.line + self.above <= self.last_line
        return self.source == listing.source and in_place and self._has_text_of(listing)

    def _has_text_of(self, listing: Listing) -> bool:
        if not self.partly:
            return self.text.rstrip("\n") == listing.text.rstrip("\n")
        lines = (line.strip() for line in self.text.split("\n"))
        return all(line.strip() in lines for line in listing.text.split("\n"))


def block_of(case: Case) -> Block | None:
    """Return the block that readers see of a case, None for one that is no listing: values, prose and most directives."""
    fence, partly = case.fence, case.fence.kind == "{literalinclude}"
    if fence.kind.startswith("{") and not partly:
        return None
    return Block(
        source=case.path.resolve(),
        line=fence.line,
        last_line=fence.last_line,
        text=included_file(case).read_text("utf-8") if partly else fence.source,
        above=case.above,
        partly=partly,
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the table says of a file: blocks shown, blocks executed, seconds spent on it."""

    file: str
    shown: int
    executed: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a session: a row a file, and one line for each thing that is wrong."""

    rows: Sequence[Row]
    problems: Sequence[str]
    skipped: int

    def last_line(self) -> str:
        """Return the line that sums up the session."""
        shown, executed = sum(row.shown for row in self.rows), sum(row.executed for row in self.rows)
        return f"docs: {shown} blocks shown, {executed} executed, {self.skipped} skipped"

    def table(self) -> Iterator[str]:
        """Yield the table, slowest file first, and then the problems."""
        width = max((len(row.file) for row in self.rows), default=4)
        yield f"{'file':{width}}  shown  executed  seconds"
        for row in sorted(self.rows, key=lambda row: -row.seconds):
            yield f"{row.file:{width}}  {row.shown:5}  {row.executed:8}  {row.seconds:.1f}"
        yield from self.problems


def compare(
    shown: Shown,
    executed: Collection[Block],
    *,
    selected: Collection[Path],
    seconds: Mapping[Path, float],
    skipped: int,
    root: Path,
) -> Report:
    """Compare what the `selected` files and folders show with what was executed.

    A listing counts with the page that shows it, and with the file that it is written in.
    """

    def is_selected(path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in selected)

    # A docstring that two pages show is one block.
    seen = {
        (at.source, at.line, at.text): at for at in shown.listings if is_selected(at.page) or is_selected(at.source)
    }
    files = sorted({at.source for at in seen.values()} | {block.source for block in executed} | set(seconds))
    rows = [
        Row(
            file=_name(file, root),
            shown=sum(at.source == file for at in seen.values()),
            executed=sum(block.source == file for block in executed),
            seconds=seconds.get(file, 0.0),
        )
        for file in files
    ]
    problems = [f"warning: {line}" for line in shown.warnings.splitlines() if line.strip()]
    problems += _differences(list(seen.values()), executed, root)
    if skipped:
        problems.append(f"{skipped} skipped")
    if not any(is_selected(page) for page in shown.pages) and not executed:
        problems.append("no page was selected")
    return Report(rows=rows, problems=problems, skipped=skipped)


def _differences(seen: Collection[Listing], executed: Collection[Block], root: Path) -> Iterator[str]:
    """Name each block that was not executed, and each that nobody sees."""
    for listing in seen:
        if not any(block.is_shown_by(listing) for block in executed):
            first = listing.text.strip().partition("\n")[0][:60]
            yield f"{_place(listing, root)}: shown, not executed: {first!r}"
    for block in executed:
        if not any(block.is_shown_by(listing) for listing in seen):
            yield f"{_name(block.source, root)}:{block.line}: executed, but no reader sees it"


def _place(listing: Listing, root: Path) -> str:
    """Say where a listing is written, and for one from another file on which page it is shown."""
    source, page = _name(listing.source, root), _name(listing.page, root)
    if listing.source == listing.page:
        return f"{source}:{listing.line}"
    line = f"line {listing.line} of a docstring" if listing.source.suffix == ".py" else f"line {listing.line}"
    return f"{source}: {line}, on {page}"


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root) if path.is_relative_to(root) else path)
