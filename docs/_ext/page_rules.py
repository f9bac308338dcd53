"""What every page keeps to, as warnings by name: headings that can be linked to, a way on at the end, pictures that are shown and
described, code that is not wider than its column, and public names that say what they are.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from vocabulary import documented_objects, modules

LOG = logging.getLogger(__name__)
PICTURES = frozenset({".svg", ".png", ".jpg", ".gif", ".webp"})
COLUMN = 88  # letters of code that a desktop shows without scrolling
NO_WAY_ON = ("reference/", "changelog", "contributing", "404")
"""Pages that are looked things up in, and so lead nowhere."""


def check_page(app: Sphinx, tree: nodes.document) -> None:
    """Warn of what is wrong with one page."""
    page = app.env.docname
    for problem, node in page_problems(page, tree):
        LOG.warning(problem, type="page", subtype="rules", location=node)


def page_problems(page: str, tree: nodes.document) -> Iterator[tuple[str, nodes.Node]]:
    """Each problem of a page, and where it is."""
    seen: set[str] = set()
    for title in tree.findall(nodes.title):
        if title.astext() in seen:
            yield f"heading {title.astext()!r} is used twice on this page", title
        seen.add(title.astext())
    for image in tree.findall(nodes.image):
        if not image.get("alt", "").strip():
            yield f"picture {image['uri']} has no :alt:", image
    for listing in tree.findall(nodes.literal_block):
        # What is included from a file is as wide as the file.
        if listing.get("language") == "python" and "source" not in listing:
            for line in listing.astext().splitlines():
                if len(line) > COLUMN:
                    yield f"{len(line)} letters of code are more than a line holds ({COLUMN}): {line.strip()}", listing
    last = last_block(tree)
    if not page.startswith(NO_WAY_ON) and last is not None and not leads_on(last):
        yield "the page ends without a link to where to go next", last


def last_block(tree: nodes.document) -> nodes.Element | None:
    """The last thing of a page that a reader sees."""
    kinds = (nodes.paragraph, nodes.literal_block, nodes.image, nodes.table)
    return next(reversed([node for node in tree.findall(nodes.Element) if isinstance(node, kinds)]), None)


def leads_on(block: nodes.Element) -> bool:
    """Whether it has a link to another page; one to a key, to the glossary or within the page is none."""
    return any(node.get("refdomain") == "doc" for node in block.findall(addnodes.pending_xref))


def check_site(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of pictures that no page shows, and of documented names without words."""
    shown = {Path(env.srcdir, image).resolve() for image in env.images}
    for picture in sorted(Path(env.srcdir, "figures").glob("*")):
        if picture.suffix in PICTURES and picture.resolve() not in shown:
            LOG.warning("figures/%s is shown on no page", picture.name, type="page", subtype="rules")
    for name in sorted(undocumented(set(documented_objects().values()))):
        LOG.warning("%s is public and has no docstring", name, type="page", subtype="rules")


def undocumented(placed: Collection[str]) -> Iterator[str]:
    """The placed functions and classes that lack a docstring, and such methods of these classes."""
    for module, tree in modules():
        for node in tree.body:
            known = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if known and f"{module}.{node.name}" in placed:
                yield from _wordless(node, module)


def _wordless(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> Iterator[str]:
    name = f"{owner}.{node.name}"
    overload = any(ast.unparse(decorator).endswith(("overload", "setter")) for decorator in node.decorator_list)
    if not ast.get_docstring(node) and not overload:
        yield name
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
                yield from _wordless(each, name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", check_page)
    app.connect("env-check-consistency", check_site)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
