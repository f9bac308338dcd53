"""Mends what Sphinx and the theme write for screen readers: captions of the navigation have a level, and the lines of a long
signature are no list of definitions without terms.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SIGNATURE = re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*?</dd>\n)+)</dl>', re.DOTALL)


def mend(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Change a page's HTML before it is written."""
    for part in ("furo_navigation_tree", "body"):
        if part in context:
            context[part] = mended(context[part])


def mended(html: str) -> str:
    """The HTML, mended."""
    html = html.replace('<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">')
    return SIGNATURE.sub(lambda found: f'<span class="sig-lines">{_lines(found[1])}</span>', html)


def _lines(items: str) -> str:
    return items.replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")


def setup(app: Sphinx) -> dict[str, Any]:
    # After furo, which makes the navigation.
    app.connect("html-page-context", mend, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
