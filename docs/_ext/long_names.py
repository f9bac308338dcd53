"""Long names break where a reader would break them: after a stop, a slash, an equals sign or an underscore, and before
a capital.

A browser that has no such place breaks a name between any two letters once it is longer than its line, as in a table or on a
phone. `<wbr>` is such a place; it is no character, so that copies and the search keep the name.
"""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

LONG = 12  # letters from which on a name has such places
CODE = re.compile(rf'(?<=<span class="pre">)[^<]{{{LONG},}}(?=</span>)')
TEXT = re.compile(rf"(?:(?<=>)|^)[\w./-]{{{LONG},}}(?=<|$)")
LISTING = re.compile(r"(<pre>.*?</pre>)", re.DOTALL)
PLACE = re.compile(r"(?<=[\w)\]][./=_])(?=\w)|(?<=[a-z]{3})(?=[A-Z][a-z])")


def breakable(name: str) -> str:
    """The name with its places."""
    return PLACE.sub("<wbr>", name)


def with_places(html: str) -> str:
    """The HTML, in which code in a sentence and text that is nothing but a name have places; listings stay as they are."""
    parts = LISTING.split(html)
    for number in range(0, len(parts), 2):
        for names in (CODE, TEXT):
            parts[number] = names.sub(lambda name: breakable(name[0]), parts[number])
    return "".join(parts)


def change(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Change a page's HTML before it is written, and the navigation around it."""
    for part in ("body", "furo_navigation_tree", "toc"):
        if part in context:
            context[part] = with_places(context[part])
    for way in ("prev", "next"):
        if context.get(way):
            context[way] = {**context[way], "title": with_places(context[way]["title"])}


def setup(app: Sphinx) -> dict[str, Any]:
    # After furo, which makes the navigation.
    app.connect("html-page-context", change, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
