"""Give Sybil every fence of a page, so that none is left: the one parser that a project's conftest needs.

A project makes `FenceParser(Checks(...))`, hands it to `Sybil`, and returns what Sybil collects from
`pytest_collect_file`; the `conftest.py` of this repository is an example.
"""

from collections.abc import Iterator
from pathlib import Path

from sybil import Document, Example, Region
from sybil.typing import Evaluator

from reference_impl.doctesting.evaluators import Case, Checks, evaluate
from reference_impl.doctesting.fences import Fence, fences


class FenceParser:
    """A Sybil parser that claims every fence of a page, the unknown ones too: those fail when they are run."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks

    def __call__(self, document: Document) -> Iterator[Region]:
        """Yield a region a fence, from its first line to its last."""
        starts = _line_starts(document.text)
        found = list(fences(document.text))
        for before, fence, after in zip([None, *found], found, [*found[1:], None], strict=False):
            yield Region(starts[fence.line - 1], starts[fence.last_line], fence, self._evaluator(fence, before, after))

    def _evaluator(self, fence: Fence, before: Fence | None, after: Fence | None) -> Evaluator:
        def run(example: Example) -> str | None:
            return evaluate(
                Case(
                    fence=fence,
                    path=Path(example.path),
                    checks=self.checks,
                    before=before,
                    after=after,
                    namespace=example.namespace,
                )
            )

        return run


def _line_starts(text: str) -> list[int]:
    """Return where each line begins, and where the text ends. Only a newline ends a line, as in Markdown."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(min(starts[-1] + len(line) + 1, len(text)))
    return starts
