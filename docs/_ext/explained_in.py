"""Leads from an entry of the API back to the pages that use it: "Explained in", under each signature.

Guides and design pages link to the API; this turns these links around.
"""

from typing import Any

from api_names import names_of, names_of_entries
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

API = "reference/api/"


def links(env: BuildEnvironment) -> dict[str, set[str]]:
    """Which names each page links to, by page."""
    if not hasattr(env, "explained_links"):
        env.explained_links = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.explained_links  # type: ignore[attr-defined]
    return found


def collect(app: Sphinx, tree: nodes.document) -> None:
    """Remember what a page links to."""
    page = app.env.docname
    if not page.startswith(API):
        links(app.env)[page] = {
            str(node["reftarget"]) for node in tree.findall(addnodes.pending_xref) if node.get("refdomain") == "py"
        }


def forget(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """Forget a page that is read again, or gone."""
    links(env).pop(page, None)


def merge(app: Sphinx, env: BuildEnvironment, pages: list[str], other: BuildEnvironment) -> None:
    """Take over what a parallel reader found."""
    links(env).update({page: found for page, found in links(other).items() if page in pages})


def written_again(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Entries depend on all pages."""
    return [page for page in env.found_docs if page.startswith(API)]


def show(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Put the line under the signature of each entry that a page links to."""
    if not page.startswith(API):
        return
    env, entries = app.env, names_of_entries(app.env, page)
    for entry in tree.findall(addnodes.desc):
        signature = entry.next_node(addnodes.desc_signature)
        names = names_of(signature, entries) if signature else set()
        pages = [other for other, found in sorted(links(env).items()) if names & found]
        if not pages:
            continue
        line = nodes.paragraph("", "Explained in ", classes=["explained-in"])
        for number, other in enumerate(pages):
            title = nodes.inline("", env.titles[other].astext())
            line += nodes.Text(", " if number else "")
            line += make_refnode(app.builder, page, other, "", title)
        entry.next_node(addnodes.desc_content).insert(0, line)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", written_again)
    app.connect("doctree-resolved", show)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
