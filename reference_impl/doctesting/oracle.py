"""Ask Sphinx what a reader sees: every listing of a site, found in its document trees and not by our lexer.

What runs the pages and what is found here share no code, so that a bug in one shows in the other.
"""

import io
import re
import tempfile
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes
from docutils.core import publish_doctree
from myst_parser.parsers.docutils_ import Parser
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import docutils_namespace

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_LISTING_IN_HTML = re.compile(r"<(?:pre|code|samp|kbd|textarea|xmp)\b", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A listing that a reader sees: the page it is shown on, the file it is written in, its line there and its text.

    The line is that of the opening fence. In a Python file it counts from the first line of the docstring.
    """

    page: Path
    source: Path
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Shown:
    """All listings of the pages, and what Sphinx had to warn about."""

    listings: tuple[Listing, ...]
    pages: frozenset[Path]
    warnings: str


def build(pages: Path, conf: Path, beside: Collection[Path] = ()) -> Shown:
    """Read the site in `pages`, configured by the `conf.py` in `conf`, and the Markdown files `beside` it."""
    said, found, read = io.StringIO(), list[Listing](), set[Path]()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), docutils_namespace():
        # Extensions call what a later Sphinx will not have. That is theirs to mend and says nothing about the pages.
        warnings.simplefilter("ignore")
        out, doctrees = Path(folder) / "out", Path(folder) / "doctrees"
        try:
            app = Sphinx(pages, conf, out, doctrees, "dummy", status=None, warning=said, freshenv=True)
            app.build(force_all=True)
        except SphinxError as error:
            return Shown(listings=(), pages=frozenset(), warnings=f"the site cannot be built: {error}")
        for name in sorted(app.env.found_docs):
            page = Path(app.env.doc2path(name))
            read.add(page)
            found += listings(app.env.get_doctree(name), page)
    for page in beside:
        read.add(page)
        found += listings(_read_alone(page), page)
    return Shown(listings=tuple(found), pages=frozenset(read), warnings=_COLOUR.sub("", said.getvalue()))


def listings(tree: nodes.document, page: Path) -> Iterator[Listing]:
    """Yield the listings of a document tree: code, sessions, literal blocks, and those written as HTML."""
    for node in tree.findall(nodes.Element):
        is_html = isinstance(node, nodes.raw) and _LISTING_IN_HTML.search(node.astext())
        if is_html or isinstance(node, (nodes.literal_block, nodes.doctest_block)):
            source = Path(node.source or page).resolve()
            yield Listing(page=page, source=source, line=node.line or 0, text=node.astext())


def _read_alone(page: Path) -> nodes.document:
    """Read a Markdown file that belongs to no site, as a forge would show it."""
    settings = {"report_level": 5, "halt_level": 5, "raw_enabled": True, "file_insertion_enabled": False}
    return publish_doctree(page.read_text("utf-8"), source_path=str(page), parser=Parser(), settings_overrides=settings)
