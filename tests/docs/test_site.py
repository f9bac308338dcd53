"""The site, built once: nothing to warn about, nothing fetched to read it, nothing shown that is not checked."""

import io
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from reference_impl.doctesting.evaluators import EVALUATORS
from reference_impl.doctesting.fences import Fence, fences

# autodoc2 0.5.0 and MyST 5.2 still ask Sphinx for its application in a way that Sphinx 11 will refuse.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Site:
    """A built site: Sphinx's own view of the pages, the folder of HTML, and what Sphinx had to say."""

    app: Sphinx
    html: Path
    warnings: str


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder, said = tmp_path_factory.mktemp("site"), io.StringIO()
    with docutils_namespace():
        app = Sphinx(DOCS, ROOT, folder / "html", folder / "doctrees", "html", status=None, warning=said, freshenv=True)
        app.build(force_all=True)
    return Site(app, folder / "html", said.getvalue())


def shown_listings(site: Site) -> Iterator[tuple[Path, nodes.literal_block]]:
    """Yield what readers see as listings, from Sphinx's document trees alone: our lexer has no say in it.

    The parts that come from docstrings are left out: they name the Python file as their source.
    """
    for page in sorted(site.app.env.found_docs):
        path = Path(site.app.env.doc2path(page))
        for block in site.app.env.get_doctree(page).findall(nodes.literal_block):
            if Path(block.source or "").suffix != ".py" and not _in_api(block):
                yield path, block


def _in_api(node: nodes.Node) -> bool:
    """Tell whether a node lies in the description of a Python object."""
    return any(parent.tagname == "desc" for parent in _parents(node))


def _parents(node: nodes.Node) -> Iterator[nodes.Element]:
    while node.parent is not None:
        node = node.parent
        yield node


def claims(fence: Fence, block: nodes.literal_block) -> bool:
    """Tell whether a fence that has an evaluator is this listing: the same place and the same text."""
    same_place = fence.line <= (block.line or 0) <= fence.last_line
    same_text = fence.kind == "{literalinclude}" or fence.source.rstrip("\n") == block.astext().rstrip("\n")
    return fence.kind in EVALUATORS and same_place and same_text


def test_sphinx_has_nothing_to_warn_about(site: Site) -> None:
    """Every reference leads somewhere, every page is in a table of contents, every diagram compiles."""
    assert site.app.config.nitpicky
    assert not site.warnings, site.warnings


def test_every_listing_that_a_reader_sees_is_checked(site: Site) -> None:
    """What Sphinx shows and what the evaluators claim are found by different code, and agree."""
    found = {path: list(fences(path.read_text("utf-8"))) for path in DOCS.rglob("*.md")}
    listings = list(shown_listings(site))
    assert listings, "the pages show no code at all: the oracle must be looking in the wrong place"
    unclaimed = [
        f"{block.source}:{block.line}: {block.astext()[:60]!r}"
        for path, block in listings
        if Path(block.source or "") != path or not any(claims(fence, block) for fence in found[path])
    ]
    assert not unclaimed, "shown but never run:\n" + "\n".join(unclaimed)


def test_no_listing_hides_in_raw_html(site: Site) -> None:
    """A `<pre>` written by hand would be shown without being anybody's fence."""
    for page in sorted(site.app.env.found_docs):
        for raw in site.app.env.get_doctree(page).findall(nodes.raw):
            assert not re.search(r"<(pre|code|textarea)\b", raw.astext()), f"{page}: {raw.astext()[:80]!r}"


class _Assets(HTMLParser):
    """Collect the addresses from which a browser loads something by itself."""

    LOADS = frozenset({"audio", "embed", "iframe", "img", "link", "object", "script", "source", "video"})

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.LOADS:
            self.found += [value for name, value in attrs if name in {"src", "href", "data", "srcset"} and value]


def test_reading_the_site_loads_nothing_from_a_network(site: Site) -> None:
    """No script, style, font or image comes from elsewhere, so that the site can be read from a disk."""
    for page in site.html.rglob("*.html"):
        assets = _Assets()
        assets.feed(page.read_text("utf-8"))
        assert not [address for address in assets.found if re.match(r"(?:https?:)?//", address)], page
    for style in site.html.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text("utf-8")), style


def test_pytest_collects_every_fence_of_every_page() -> None:
    """However deep a page lies, each of its fences is a test."""
    paths = [*DOCS.rglob("*.md"), *ROOT.glob("README.md")]
    found = {path: list(fences(path.read_text("utf-8"))) for path in paths if "_build" not in path.parts}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *map(str, found)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    collected = Counter(line.split("::")[0] for line in listed.splitlines() if "::line:" in line)
    assert collected == {str(path.relative_to(ROOT)): len(blocks) for path, blocks in found.items() if blocks}
