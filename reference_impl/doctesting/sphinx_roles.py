"""Teach Sphinx what the evaluators ask of a page: the role `value`, and the option `tested-by` of `literalinclude`.

Sphinx shows the text of a value and the included file as ever; expression and test are for whoever runs the page.
"""

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.directives.code import LiteralInclude
from sphinx.util.docutils import SphinxRole

from reference_impl.doctesting.values import split_value


class Value(SphinxRole):
    """Show a value without the expression that gives it."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the shown text."""
        try:
            shown, _ = split_value(self.text)
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        return [nodes.inline("", shown, classes=["value"])], []


class TestedInclude(LiteralInclude):
    """A `literalinclude` that may name the test that runs the included file."""

    option_spec: ClassVar[dict[str, Any]] = {**LiteralInclude.option_spec, "tested-by": directives.unchanged_required}


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the role and replace the directive."""
    app.add_role("value", Value())
    app.add_directive("literalinclude", TestedInclude, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
