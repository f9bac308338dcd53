"""What is shown and what was executed must be the same blocks: file, place and text."""

from pathlib import Path
from typing import Any

import pytest

from reference_impl.doctesting.oracle import Listing, Shown
from reference_impl.doctesting.report import Block, Report, compare

ROOT = Path("/project")
PAGE = ROOT / "docs" / "a.md"
OTHER = ROOT / "docs" / "b.md"
MODULE = ROOT / "package" / "m.py"


def listing(line: int = 3, text: str = "x = 1\n", source: Path = PAGE, page: Path = PAGE) -> Listing:
    return Listing(page=page, source=source, line=line, text=text)


def block(line: int = 3, last_line: int = 5, text: str = "x = 1\n", source: Path = PAGE, **more: Any) -> Block:
    return Block(source=source, line=line, last_line=last_line, text=text, **more)


def report(
    listings: list[Listing],
    blocks: list[Block],
    selected: tuple[Path, ...] = (ROOT,),
    warnings: str = "",
    skipped: int = 0,
) -> Report:
    shown = Shown(listings=tuple(listings), pages=frozenset({PAGE, OTHER}), warnings=warnings)
    return compare(shown, blocks, selected=selected, seconds={PAGE: 1.5}, skipped=skipped, root=ROOT)


def test_equal_blocks_are_no_problem() -> None:
    """The line need only lie within the block: a reader's listing may begin below its caption."""
    found = report([listing(), listing(9, "y")], [block(), block(8, 10, "y\n")])
    assert found.problems == []
    assert found.last_line() == "docs: 2 blocks shown, 2 executed, 0 skipped"
    assert list(found.table())[1].split() == ["docs/a.md", "2", "2", "1.5"]


@pytest.mark.parametrize(
    ("listings", "blocks", "problem"),
    [
        ([listing()], [], "docs/a.md:3: shown, not executed: 'x = 1'"),
        ([], [block()], "docs/a.md:3: executed, but no reader sees it"),
        ([listing(line=6)], [block()], "docs/a.md:6: shown, not executed: 'x = 1'"),
        ([listing(text="x = 2")], [block()], "docs/a.md:3: shown, not executed: 'x = 2'"),
        ([listing()], [block(source=OTHER)], "docs/b.md:3: executed, but no reader sees it"),
        (
            [listing(source=MODULE)],
            [],
            "package/m.py: line 3 of a docstring, on docs/a.md: shown, not executed: 'x = 1'",
        ),
        ([listing(source=MODULE)], [block(source=MODULE)], None),
        ([listing(source=MODULE)], [block(13, 15, source=MODULE, above=10)], None),
        ([listing(source=MODULE)], [block(13, 15, source=MODULE)], "package/m.py:13: executed, but no reader sees it"),
        ([listing(source=MODULE), listing(source=MODULE, page=OTHER)], [block(source=MODULE)], None),
        ([listing(text="b\nd")], [block(text="a\n  b\nc\nd\n", partly=True)], None),
        ([listing(text="d\nb")], [block(text="a\nb\nc\nd\n", partly=True)], "docs/a.md:3: shown, not executed: 'd'"),
    ],
)
def test_blocks_are_told_apart(listings: list[Listing], blocks: list[Block], problem: str | None) -> None:
    """By file, by place and by text; a docstring has lines of its own, and of an included file a part is enough."""
    problems = report(listings, blocks).problems
    assert problem in problems if problem else not problems


def test_warnings_and_skips_are_problems() -> None:
    """Each by itself."""
    assert report([listing()], [block()], warnings="a.md:1: WARNING: x\n").problems == ["warning: a.md:1: WARNING: x"]
    assert report([listing()], [block()], skipped=1).problems == ["1 skipped"]


def test_only_what_was_selected_counts() -> None:
    """A page, a folder, or a Python file; to select nothing proves nothing."""
    listings = [listing(), listing(source=OTHER, page=OTHER), listing(source=MODULE, page=OTHER)]
    assert report(listings, [block()], selected=(PAGE,)).problems == []
    assert len(report(listings, [block()], selected=(PAGE.parent,)).problems) == 2
    assert report(listings, [block(source=MODULE)], selected=(MODULE.parent,)).problems == []
    assert report(listings, [], selected=(ROOT / "tests",)).problems == ["no page was selected"]
