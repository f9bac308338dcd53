"""What the generated tables share: layout, names that are targets, names that are links, and the count of what is shown.

A table notes what it shows. When all pages are read, what stands in no table, or in two, is a warning: whoever adds a key,
a command or a metric says where a reader finds it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from anchors import link_to
from docutils import nodes
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

type Cell = list[nodes.Node]

_NAME = re.compile(r"\b[a-z]+(?:[_.][a-z]+)*_[a-z]+\b")


class TableDirective(SphinxDirective):
    """A table of the class `by-row`: a narrow screen shows each row as a block (see `_static/site.css`)."""

    def table(self, titles: list[str], rows: list[list[Cell]], style: str) -> nodes.table:
        """Lay out cells, each a list of paragraphs, in a table of the class `style`."""
        group = nodes.tgroup(cols=len(titles))
        group += [nodes.colspec(colwidth=1) for _ in titles]
        group += nodes.thead("", _row([[nodes.paragraph("", title)] for title in titles]))
        group += nodes.tbody("", *map(_row, rows))
        table = nodes.table("", group, classes=["by-row", style])
        self.set_source_info(table)
        return table

    def anchored(self, anchor: str, shown: str) -> nodes.paragraph:
        """A name as code, which can be linked to as `anchor` and links to itself."""
        return nodes.paragraph(
            "", "", self.target(anchor), nodes.reference("", "", nodes.literal("", shown), refid=anchor)
        )

    def target(self, anchor: str) -> nodes.target:
        """What links to `anchor` lead to."""
        target = nodes.target("", "", ids=[anchor], names=[anchor])
        self.state.document.note_explicit_target(target)
        return target

    def linked(self, words: str, anchor_of: Callable[[str], str | None]) -> nodes.paragraph:
        """A paragraph in which names are code, and links where `anchor_of` knows them."""
        paragraph, at = nodes.paragraph(), 0
        for match in _NAME.finditer(words):
            shown, anchor = nodes.literal("", match[0]), anchor_of(match[0])
            paragraph += nodes.Text(words[at : match.start()])
            paragraph += link_to(anchor, shown, self.env.docname) if anchor else shown
            at = match.end()
        paragraph += nodes.Text(words[at:])
        return paragraph

    def note_shown(self, kind: str, name: str) -> None:
        """Remember that this page shows a key, a command or a metric."""
        # Sphinx drops a page's metadata before it reads the page again, and merges those of parallel readers.
        about: Any = self.env.metadata[self.env.docname]
        about.setdefault(f"shown-{kind}", []).append(name)


def not_once(env: BuildEnvironment, kind: str, directive: str, names: Iterable[str]) -> Iterator[str]:
    """One line for each name that is not in exactly one table."""
    shown = Counter(name for about in env.metadata.values() for name in about.get(f"shown-{kind}", ()))
    for name in names:
        if shown[name] == 0:
            yield f"{kind} {name} is in no {{{directive}}}"
        elif shown[name] > 1:
            yield f"{kind} {name} is in {shown[name]} tables of the kind {{{directive}}}"


def text(words: str) -> nodes.paragraph:
    """A paragraph; what stands between backticks is code."""
    parts = words.split("`")
    pieces = [nodes.literal("", part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]
    return nodes.paragraph("", "", *pieces)


def _row(cells: list[Cell]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *paragraphs) for paragraphs in cells))
