"""Give Sybil, and so pytest, every fence of a page, so that none is left.

A project's `conftest.py` sets `pytest_collect_file = collector(Checks(...))`; that of this repository is an example.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example, Region, Sybil

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.docstrings import docstrings
from reference_impl.doctesting.evaluators import evaluate
from reference_impl.doctesting.fences import PROSE, VALUE, fences
from reference_impl.doctesting.pages import page_examples


class FenceParser:
    """A Sybil parser that claims every fence of a page, the unknown ones too: those fail when they are run."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks

    def __call__(self, document: Document) -> Iterator[Region]:
        """Yield a region a case, which is what it has parsed: a fence from its first line to its last."""
        # Of two regions that begin at one place, Sybil puts first the one that comes last: here the prose of the page.
        yield from reversed(list(self._regions(document)))

    def _regions(self, document: Document) -> Iterator[Region]:
        text, end = document.text, 0
        starts = _line_starts(text)
        for case in page_examples(Path(document.path), text, self.checks, document.namespace):
            start = starts[case.fence.line - 1]
            if case.fence.kind == VALUE:
                # More than one may stand on a line.
                start = text.find(VALUE, max(start, end))
                end = start + len(VALUE)
            else:
                end = start if case.fence.kind == PROSE else starts[case.fence.last_line]
            yield Region(start, end, case, _evaluate)


def _evaluate(example: Example) -> str | None:
    """Evaluate the case that an example was made of."""
    return evaluate(example.parsed)


def _line_starts(text: str) -> list[int]:
    """Return where each line begins, and where the text ends. Only a newline ends a line, as in Markdown."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(min(starts[-1] + len(line) + 1, len(text)))
    return starts


def collector(checks: Checks) -> Callable[[Path, Any], Any]:
    """Return what a conftest names `pytest_collect_file`: pages however deep, and what lies beside them.

    It carries `checks`, where `reference_impl.doctesting.pytest_plugin` looks for them.
    """
    # Files are chosen by `is_ours`. As a rule Sybil imports a Python file; the fences of a docstring stand on their own.
    sybil = Sybil([FenceParser(checks)], patterns=["*"], path=str(checks.root), document_types={".py": Document})
    collect = sybil.pytest()

    def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return collect(file_path, parent) if is_ours(file_path, checks) else None

    pytest_collect_file.checks = checks  # type: ignore[attr-defined]
    return pytest_collect_file


def is_ours(path: Path, checks: Checks) -> bool:
    """Tell whether a file is a page, or a Python file with a fence in a docstring."""
    if path.suffix == ".md":
        if not path.is_relative_to(checks.pages):
            return path in checks.beside
        # Sphinx writes to folders such as _build, and reads none of them.
        return not any(folder.startswith("_") for folder in path.relative_to(checks.pages).parts[:-1])
    if path.suffix != ".py" or not any(path.is_relative_to(folder) for folder in checks.beside):
        return False
    return any(True for above, text in docstrings(path.read_text("utf-8")) for _ in fences(text, above=above))
