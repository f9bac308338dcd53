"""The first abbreviation of its kind on a page leads to its entry in the glossary; one without an entry is a warning."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

LOG = logging.getLogger(__name__)
ACRONYM = re.compile(r"(?<![\w/+-])[A-Z][A-Z0-9]+(?=s?\b)(?![-&])")
EVERYDAY = frozenset({"API", "CPU", "CSV", "GB", "GPU", "HTML", "HTTP", "JSON", "LM", "MB", "SVG", "URL", "YAML"})
"""Whoever reads these pages knows them."""

NUMBERED = re.compile(r"[A-Z]\d+")
"""Names that a page gives itself, such as D3."""

GLOSSARY = "reference/glossary"
NO_PROSE = (
    nodes.literal,
    nodes.literal_block,
    nodes.math,
    nodes.raw,
    nodes.reference,
    nodes.title,
    addnodes.desc_signature,
    addnodes.pending_xref,
)


def link_first_uses(app: Sphinx, tree: nodes.document) -> None:
    """Put a link in the place of each first use; whether the glossary has it, Sphinx finds out when all pages are read."""
    if app.env.docname in (GLOSSARY, "changelog"):
        return
    seen = set(EVERYDAY)
    for text in list(tree.findall(nodes.Text)):
        if not _within(text, NO_PROSE):
            pieces = list(_pieces(text, app.env.docname, seen))
            if len(pieces) > 1:
                text.parent.replace(text, pieces)


def _pieces(text: nodes.Text, page: str, seen: set[str]) -> Iterator[nodes.Node]:
    """The text, with links where something is used first."""
    words, at = text.astext(), 0
    for match in ACRONYM.finditer(words):
        if match[0] in seen or NUMBERED.fullmatch(match[0]):
            continue
        seen.add(match[0])
        about = {"refdomain": "std", "reftype": "term", "reftarget": match[0], "refdoc": page}
        link = addnodes.pending_xref("", nodes.inline("", match[0]), **about, refexplicit=False, refwarn=True)
        link.source, link.line = text.parent.source, text.parent.line
        yield nodes.Text(words[at : match.start()])
        yield link
        at = match.end()
    yield nodes.Text(words[at:])


def _within(text: nodes.Text, kinds: tuple[type[nodes.Node], ...]) -> bool:
    node = text.parent
    while node is not None and not isinstance(node, kinds):
        node = node.parent
    return node is not None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", link_first_uses)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
