"""`{timeline} FILE`: a schedule that readers step through, from the events that a tracker was told (JSON lines).

The body is what stands there without JavaScript. `docs/_static/timeline.js` draws the rest; it is loaded on pages that
have such a figure, and on no other.
"""

import json
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from reference_impl.staleness.report.palette import colours_of, ink_on

SCRIPT = "timeline.js"


class Timeline(SphinxDirective):
    """A figure with the events of the file that the argument names."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(name)
        with open(path, encoding="utf-8") as lines:
            events = [json.loads(line) for line in lines]
        epochs = {0, *(event["epoch"] for event in events if event["event"] == "weights_changed")}
        colours = {epoch: (fill, ink_on(fill)) for epoch, fill in colours_of(epochs).items()}
        still = nodes.container(classes=["timeline-still"])
        still += self.parse_content_to_nodes()
        data = json.dumps({"events": events, "colours": colours}).replace("</", "<\\/")
        script = nodes.raw("", f'<script type="application/json">{data}</script>', format="html")
        return [nodes.container("", still, script, classes=["timeline"])]


def add_script(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Load the script on the pages that need it."""
    if doctree is not None and any("timeline" in node["classes"] for node in doctree.findall(nodes.container)):
        app.add_js_file(SCRIPT)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("timeline", Timeline)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
