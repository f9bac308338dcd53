"""Make the tables of metrics from their registries, so that the page says what the code computes.

`{metrics-table}` shows every metric of a training step; each can be linked to as `metric-<name>`. `{alias-table}`
takes the name of a system and shows its metrics beside ours.
"""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from reference_impl.staleness import aliases, metrics

_NAME = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


class _Table(SphinxDirective):
    """A table with the class `metrics`, which a narrow screen shows row by row (see `_static/site.css`)."""

    def table(self, titles: list[str], rows: list[list[list[nodes.Node]]]) -> nodes.table:
        """Lay out cells, each a list of paragraphs."""
        group = nodes.tgroup(cols=len(titles))
        group += [nodes.colspec(colwidth=1) for _ in titles]
        head = [[nodes.paragraph("", title)] for title in titles]
        group += nodes.thead("", _row(head))
        group += nodes.tbody("", *map(_row, rows))
        table = nodes.table("", group, classes=["metrics"])
        self.set_source_info(table)
        return table

    def text(self, words: str) -> nodes.paragraph:
        """A paragraph in which our metrics are links, and other names code."""
        paragraph, at = nodes.paragraph(), 0
        for match in _NAME.finditer(words):
            paragraph += nodes.Text(words[at : match.start()])
            paragraph += self._named(match[0])
            at = match.end()
        paragraph += nodes.Text(words[at:])
        return paragraph

    def _named(self, name: str) -> nodes.Node:
        shown = nodes.literal("", name)
        if name not in metrics.METRICS:
            return shown
        return addnodes.pending_xref(
            "",
            shown,
            refdomain="std",
            reftype="ref",
            reftarget=f"metric-{name}",
            refexplicit=True,
            refwarn=True,
            refdoc=self.env.docname,
        )


class MetricsTable(_Table):
    """Every metric of the registry, in its order."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(metrics.__file__)
        rows = [
            [
                [self._target(metric.name), self.text(metric.unit)],
                [self.text(metric.formula)],
                [self.text(metric.population)],
                [self.text(metric.source)],
            ]
            for metric in metrics.METRICS.values()
        ]
        return [self.table(["Metric, unit", "Formula", "Taken over", "Defined by"], rows)]

    def _target(self, name: str) -> nodes.paragraph:
        """The name, as a target that links to itself."""
        key = f"metric-{name}"
        target = nodes.target("", "", ids=[key], names=[key])
        self.state.document.note_explicit_target(target)
        return nodes.paragraph("", "", target, nodes.reference("", "", nodes.literal("", name), refid=key))


class AliasTable(_Table):
    """The metrics of one system."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(aliases.__file__)
        try:
            found = aliases.aliases_of(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from None
        rows = [
            [
                [nodes.paragraph("", "", nodes.literal("", alias.name)), self.text(alias.unit)],
                [self.text(alias.formula)],
                [self.text(alias.population)],
                [self.text(alias.difference), nodes.paragraph("", "", *_source(alias.source))],
            ]
            for alias in found
        ]
        return [self.table(["Metric, unit", "Formula", "Taken over", "Beside ours, and source"], rows)]


def _source(source: str) -> Iterator[nodes.Node]:
    """The repository as a link, and the path in it, or a pull request."""
    repository, path = source.split(" ", 1)
    address = f"https://github.com/{repository}"
    yield nodes.reference("", repository, internal=False, refuri=address)
    yield nodes.Text(" ")
    yield nodes.literal("", path) if "/" in path else nodes.Text(path)


def _row(cells: list[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", *paragraphs) for paragraphs in cells))


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the two directives."""
    app.add_directive("metrics-table", MetricsTable)
    app.add_directive("alias-table", AliasTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
