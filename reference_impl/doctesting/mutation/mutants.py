"""What can be changed on a page, one thing at a time, and a sample of it that leaves no page and no kind out."""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from reference_impl.doctesting.console import PROMPT
from reference_impl.doctesting.fences import VALUE, Fence, fences
from reference_impl.doctesting.mutation.code import command_edits, python_edits
from reference_impl.doctesting.mutation.data import toml_edits, yaml_edits
from reference_impl.doctesting.mutation.edits import Edit, different, line_starts, misspelt, output_edits, source_lines
from reference_impl.doctesting.mutation.prose import prose_edits

KINDS = ("value", "key", "name", "number", "output", "code", "range", "link", "option")

# Options of literalinclude that say which part of a file is shown.
_INCLUDE = "{literalinclude}"
_RANGES = frozenset({"lines", "pyobject", "start-after", "start-at", "end-before", "end-at", "lineno-match"})
# Directives whose body is a language of its own, which says nothing that a check could hold against it.
_DRAWN = frozenset({"{graphviz}", "{math}", "{raw}"})
_OPTION = re.compile(r"\s*:(?P<name>[\w-]+):\s*(?P<value>.*?)\s*")


@dataclass(frozen=True, order=True)
class Mutant:
    """A page with one thing changed. `page` is its path below the root, `line` counts from 1."""

    page: str
    line: int
    edit: Edit

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        return self.edit.kind

    def __str__(self) -> str:
        """Name the place and the change."""
        after = repr(self.edit.after) if self.edit.after else "nothing"
        return f"{self.page}:{self.line}: {self.kind}: {self.edit.before!r} -> {after}"


def mutants(page: str, text: str) -> list[Mutant]:
    """Return the mutants of a page from top to bottom; those that change nothing or the same are left out."""
    newlines = line_starts(text)[1:]
    found = {edit for edit in [*prose_edits(text), *_all_fence_edits(text)] if edit.before != edit.after}
    return [Mutant(page, 1 + sum(start <= edit.start for start in newlines), edit) for edit in sorted(found)]


def _all_fence_edits(text: str) -> Iterator[Edit]:
    for fence in fences(text):
        yield from _fence_edits(text, fence)


def _fence_edits(text: str, fence: Fence) -> Iterator[Edit]:
    lines = list(source_lines(text, fence))
    yield from _option_edits(text, fence)
    match fence.kind:
        case "yaml" | "json":
            yield from _on_page(yaml_edits(fence.source), lines)
        case "toml":
            yield from _on_page(toml_edits(fence.source), lines)
        case "python":
            yield from _on_page(python_edits(fence.source), lines)
        case "console" | "pycon":
            yield from _session_edits(text, fence, lines)
        case "text":
            for offset, line in lines:
                yield from output_edits(offset, line, ends=_ends(text, offset, line))
        case kind if kind.startswith("{") and kind != VALUE:
            yield from _directive_edits(text, fence, lines)


def _on_page(edits: Iterable[Edit], lines: list[tuple[int, str]]) -> Iterator[Edit]:
    """Move edits of a block's source to where its lines stand on the page; one over several lines must be in one piece."""
    starts = line_starts("\n".join(line for _, line in lines))
    for edit in edits:
        number = next(n for n in range(len(starts) - 1, -1, -1) if starts[n] <= edit.start)
        last = number + edit.before.count("\n")
        if last < len(lines) and lines[last][0] - lines[number][0] == starts[last] - starts[number]:
            yield Edit(lines[number][0] + edit.start - starts[number], edit.before, edit.after, edit.kind)


def _ends(text: str, offset: int, line: str) -> bool:
    """Say whether the line is a line of the page by itself, so that dropping it leaves no indentation behind."""
    return text[offset - 1 : offset] == "\n" and text[offset + len(line) : offset + len(line) + 1] == "\n"


def _session_edits(text: str, fence: Fence, lines: list[tuple[int, str]]) -> Iterator[Edit]:
    """Change what is typed as code and what is printed as output."""
    typed, continues = list[tuple[int, str]](), False
    for offset, line in lines:
        prompt = next((mark for mark in (PROMPT, ">>> ", "... ") if line.startswith(mark)), None)
        if prompt is None and not continues:
            yield from output_edits(offset, line, ends=_ends(text, offset, line))
            continue
        continues = fence.kind == "console" and line.endswith("\\")
        typed.append((offset + len(prompt or ""), line.removeprefix(prompt or "")))
    if fence.kind == "pycon":
        # Each line of a session stands for itself: what is indented below a colon is no Python alone.
        yield from _on_page(python_edits("\n".join(line for _, line in typed)), typed)
        return
    for offset, line in typed:
        for edit in command_edits(line if text[offset - 2 : offset] == PROMPT else f"- {line}"):
            shift = 0 if text[offset - 2 : offset] == PROMPT else -2
            yield Edit(offset + shift + edit.start, edit.before, edit.after, edit.kind)


def _directive_edits(text: str, fence: Fence, lines: list[tuple[int, str]]) -> Iterator[Edit]:
    """Change a directive's argument and drop the lines of its body."""
    changed = misspelt(fence.argument)
    if changed is not None:
        start = text.index(fence.argument, line_starts(text)[fence.line - 1])
        yield Edit(start, fence.argument, changed, "range" if fence.kind == _INCLUDE else "link")
    if fence.kind not in _DRAWN:
        for offset, line in lines:
            if line.strip() and _ends(text, offset, line):
                yield Edit(offset, f"{line}\n", "", "option")


def _option_edits(text: str, fence: Fence) -> Iterator[Edit]:
    """Drop each option of a directive, and change those that say which part of a file is shown."""
    starts, page = line_starts(text), text.split("\n")
    for number in range(fence.line, fence.source_line - 1):
        option, start = _OPTION.fullmatch(page[number]), starts[number]
        if option is None or option["name"] not in fence.options:
            continue
        yield Edit(start, f"{page[number]}\n", "", "option")
        changed = different(option["value"]) if fence.kind == _INCLUDE and option["name"] in _RANGES else None
        if changed is not None:
            yield Edit(start + option.start("value"), option["value"], changed, "range")


def sample(found: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Choose mutants of every page and every kind in turn, in an order that `seed` fixes; return them in page order."""
    cells: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in sorted(found):
        cells.setdefault((mutant.page, mutant.kind), []).append(mutant)
    shuffle = random.Random(seed).shuffle
    order = [cells[cell] for cell in sorted(cells)]
    shuffle(order)
    for cell in order:
        shuffle(cell)
    rounds = (mutant for turn in zip_longest(*order) for mutant in turn if mutant is not None)
    return sorted(mutant for mutant, _ in zip(rounds, range(count), strict=False))
