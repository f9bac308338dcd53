"""Small changes to words and numbers, and the places of a block's lines on its page."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from reference_impl.doctesting.fences import Fence

NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)*(?!\w)")
_WORD = re.compile(r"[^\W\d_]{2,}")
# A number that varies, or a path, on a page: a change to its bounds is no change to what is said.
_PLACEHOLDER = re.compile(r"<[^<>\n]*>")


@dataclass(frozen=True, order=True)
class Edit:
    """A change of a text: what stands at `start` (counted in characters) gives way to `after`."""

    start: int
    before: str
    after: str
    kind: str

    def apply(self, text: str) -> str:
        """Return the changed text."""
        end = self.start + len(self.before)
        assert text[self.start : end] == self.before, f"the text has no {self.before!r} there"
        return text[: self.start] + self.after + text[end:]


def other_number(number: str) -> str:
    """Return a number of the same look: 5 becomes 6, 0.9 becomes 0.8."""
    last = number[-1]
    if number.isdecimal():
        return str(int(number) + 1)
    return number[:-1] + ("8" if last == "9" else str(int(last) + 1))


def misspelt(text: str) -> str | None:
    """Swap two letters in the longest word, or double its last where all are equal; None where there is no word."""
    words = sorted(_WORD.finditer(text), key=lambda word: -len(word[0]))
    if not words:
        return None
    start, end = words[0].span()
    middle = (start + end - 1) // 2
    for at in [*range(middle, end - 1), *range(start, middle)]:
        if text[at].lower() != text[at + 1].lower():
            return f"{text[:at]}{text[at + 1]}{text[at]}{text[at + 2 :]}"
    return f"{text[:end]}{text[end - 1]}{text[end:]}"


def different(text: str) -> str | None:
    """Change a value, whatever it is: a truth value, a number, a word."""
    swapped = {"true": "false", "false": "true", "True": "False", "False": "True", "null": "1", "None": "1"}
    if text in swapped:
        return swapped[text]
    number = NUMBER.search(text)
    if number is not None and (number[0] == text.lstrip("+-") or not _WORD.search(text)):
        return f"{text[: number.start()]}{other_number(number[0])}{text[number.end() :]}"
    return misspelt(text)


def source_lines(text: str, fence: Fence) -> Iterator[tuple[int, str]]:
    """Yield each line of a block with the offset on the page at which it begins, past indentation and quote marks."""
    starts = line_starts(text)
    page = text.split("\n")
    lines = fence.source.split("\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, fence.source_line - 1):
        if number < len(page) and page[number].endswith(line):
            yield starts[number] + len(page[number]) - len(line), line


def line_starts(text: str) -> list[int]:
    """Return the offset at which each line begins."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


def output_edits(offset: int, line: str, *, ends: bool) -> Iterator[Edit]:
    """Change, drop and repeat one line of an output; `ends` says that a newline ends it on the page."""
    if not line.strip():
        return
    change = _change_in_line(line)
    if change is not None:
        at, before, after = change
        yield Edit(offset + at, before, after, "output")
    if ends:
        yield Edit(offset, f"{line}\n", "", "output")
        yield Edit(offset, f"{line}\n", f"{line}\n{line}\n", "output")


def _change_in_line(line: str) -> tuple[int, str, str] | None:
    """Choose a number of the line, or else a word, outside what stands for values that vary."""
    shown = _PLACEHOLDER.sub(lambda found: "\0" * len(found[0]), line)
    number = NUMBER.search(shown)
    if number is not None:
        return number.start(), number[0], other_number(number[0])
    words = sorted(_WORD.finditer(shown), key=lambda word: -len(word[0]))
    if not words:
        return None
    wrong = misspelt(words[0][0])
    return (words[0].start(), words[0][0], wrong) if wrong else None
