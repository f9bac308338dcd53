"""The site, built once: nothing to warn about, nothing fetched to read it, nothing shown that is not checked."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from docutils import nodes
from support.built_site import Site

from reference_impl.doctesting.case import Case, Checks
from reference_impl.doctesting.evaluators import EVALUATORS
from reference_impl.doctesting.oracle import Shown, listings
from reference_impl.doctesting.pages import page_examples
from reference_impl.doctesting.report import block_of, compare
from reference_impl.doctesting.sybil_parser import is_ours

# autodoc2 0.5.0 and MyST 5.2 still ask Sphinx for its application in a way that Sphinx 11 will refuse.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHECKS = Checks(root=ROOT, pages=DOCS, beside=[ROOT / "README.md", ROOT / "reference_impl"])


def cases() -> Iterator[Case]:
    """Yield every example of the pages and of the docstrings that has an evaluator."""
    for path in sorted([*DOCS.rglob("*.md"), *(ROOT / "reference_impl").rglob("*.py")]):
        if is_ours(path, CHECKS):
            found = page_examples(path, path.read_text("utf-8"), CHECKS)
            yield from (case for case in found if case.fence.kind in EVALUATORS)


def test_sphinx_has_nothing_to_warn_about(site: Site) -> None:
    """Every reference leads somewhere, every page is in a table of contents, every diagram compiles."""
    assert site.app.config.nitpicky
    assert not site.warnings, site.warnings


def test_every_listing_that_a_reader_sees_is_checked(site: Site) -> None:
    """What Sphinx shows and what the evaluators claim are found by different code, and agree, both ways."""
    pages = {Path(site.app.env.doc2path(name)): site.app.env.get_doctree(name) for name in site.app.env.found_docs}
    shown = Shown(
        listings=tuple(listing for page, tree in pages.items() for listing in listings(tree, page)),
        pages=frozenset(pages),
        warnings="",
    )
    assert shown.listings, "the pages show no code at all: the oracle must be looking in the wrong place"
    blocks = [block for case in cases() if (block := block_of(case))]
    report = compare(shown, blocks, selected=[ROOT], seconds={}, skipped=0, root=ROOT)
    assert not report.problems, "\n".join(report.problems)
    assert report.last_line() == f"docs: {len(blocks)} blocks shown, {len(blocks)} executed, 0 skipped"


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


def test_pytest_collects_every_example() -> None:
    """However deep a page lies, its prose and each of its fences is a test, and so is each fence of a docstring."""
    paths = [*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / "reference_impl").rglob("*.py")]
    ours = [path for path in paths if is_ours(path, CHECKS)]
    expected = {
        str(path.relative_to(ROOT)): len(list(page_examples(path, path.read_text("utf-8"), CHECKS))) for path in ours
    }
    roots = ["docs", "README.md", "reference_impl"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *roots]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    collected = Counter(line.split("::")[0] for line in listed.splitlines() if "::line:" in line)
    assert collected == expected
