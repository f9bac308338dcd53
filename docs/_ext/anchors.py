"""Links to rows of the generated tables, in the style of what is linked: Sphinx's own `ref` would make plain text of code.

An anchor that no page has is Sphinx's warning about a missing reference, as for any other.
"""

from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

TYPE = "anchor"


def link_to(anchor: str, shown: nodes.Node, document: str) -> nodes.Node:
    """A link from `document` to an anchor of any page."""
    about = {"refdomain": "std", "reftype": TYPE, "reftarget": anchor, "refdoc": document}
    return addnodes.pending_xref("", shown, **about, refexplicit=True, refwarn=True)


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """The link, or `None` where no page has the anchor."""
    labels = env.domains.standard_domain.anonlabels
    if node.get("reftype") != TYPE or node["reftarget"] not in labels:
        return None
    document, anchor = labels[node["reftarget"]]
    return make_refnode(app.builder, node["refdoc"], document, anchor, shown)


def setup(app: Sphinx) -> dict[str, Any]:
    """Resolve these links when all pages are read."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
