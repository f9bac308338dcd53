"""Take a page, or the docstrings of a Python file, apart into the cases to evaluate, in the order of the file.

A runner evaluates each of them as it comes; `reference_impl.doctesting.sybil_parser` is one.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reference_impl.doctesting.case import Case, Checks
from reference_impl.doctesting.docstrings import docstrings
from reference_impl.doctesting.fences import PROSE, VALUE, Fence, fences, front_matter


def page_examples(path: Path, text: str, checks: Checks, namespace: dict[str, Any] | None = None) -> Iterator[Case]:
    """Yield the cases of the file `path` that holds `text`.

    The first case of a page of the site is its prose. All of a page share one namespace, and so do those of one docstring.
    """
    if path.suffix == ".py":
        proved = set[int]()
        for above, docstring in docstrings(text):
            yield from _cases(list(fences(docstring, above=above)), path, checks, {}, proved, {}, above)
        return
    lines = text.count("\n") + 1
    prose = Fence(kind=PROSE, source=text, line=1, last_line=lines, source_line=1)
    shared = {} if namespace is None else namespace
    # Beside the site there are no roles: a forge shows a README without Sphinx.
    if path.is_relative_to(checks.pages):
        yield Case(fence=prose, path=path, checks=checks, namespace=shared)
    yield from _cases(list(fences(text)), path, checks, shared, set(), front_matter(text), 0)


def _cases(
    found: list[Fence],
    path: Path,
    checks: Checks,
    namespace: dict[str, Any],
    proved: set[int],
    front_matter: Mapping[str, Any],
    above: int,
) -> Iterator[Case]:
    """Yield a case a fence. Values in prose are no neighbours: output follows its code whatever the text says between."""
    blocks = [fence for fence in found if fence.kind != VALUE]
    for fence in found:
        at = next((n for n, block in enumerate(blocks) if block is fence), None)
        yield Case(
            fence=fence,
            path=path,
            checks=checks,
            before=blocks[at - 1] if at else None,
            after=blocks[at + 1] if at is not None and at + 1 < len(blocks) else None,
            front_matter=front_matter,
            namespace=namespace,
            proved=proved,
            above=above,
        )
