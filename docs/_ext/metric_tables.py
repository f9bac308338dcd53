"""Make the tables of metrics from their registries, so that the page says what the code computes.

`{metrics-table}` shows every metric of a training step, and `{alias-table}` the metrics of the system that it names beside
ours. Each can be linked to as `metric-<name>`.
"""

from collections.abc import Iterator
from typing import Any

from doc_tables import TableDirective, not_once
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from reference_impl.staleness import aliases, metrics

LOG = logging.getLogger(__name__)


class _Table(TableDirective):
    """A table in whose texts the names of metrics are links."""

    def text(self, words: str) -> nodes.paragraph:
        """A paragraph in which our metrics are links, and other names code."""
        return self.linked(words, lambda name: f"metric-{name}" if name in metrics.METRICS else None)

    def named(self, name: str) -> nodes.paragraph:
        """The name of a metric, at which links to it arrive."""
        self.note_shown("metric", name)
        return self.anchored(f"metric-{name}", name)


class MetricsTable(_Table):
    """Every metric of the registry, in its order."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(metrics.__file__)
        rows = [
            [
                [self.named(metric.name), self.text(metric.unit)],
                [self.text(metric.formula)],
                [self.text(metric.population)],
                [self.text(metric.source)],
            ]
            for metric in metrics.METRICS.values()
        ]
        return [self.table(["Metric, unit", "Formula", "Taken over", "Defined by"], rows, "metrics")]


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
                [self.named(alias.name), self.text(alias.unit)],
                [self.text(alias.formula)],
                [self.text(alias.population)],
                [self.text(alias.difference), nodes.paragraph("", "", *_source(alias.source))],
            ]
            for alias in found
        ]
        return [self.table(["Metric, unit", "Formula", "Taken over", "Beside ours, and source"], rows, "metrics")]


def _source(source: str) -> Iterator[nodes.Node]:
    """The repository as a link, and the path in it, or a pull request."""
    repository, path = source.split(" ", 1)
    address = f"https://github.com/{repository}"
    yield nodes.reference("", repository, internal=False, refuri=address)
    yield nodes.Text(" ")
    yield nodes.literal("", path) if "/" in path else nodes.Text(path)


def every_metric_is_documented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of metrics that are in no table, or in two, and of those that lack a word."""
    problems = [
        *not_once(env, "metric", "metrics-table", metrics.METRICS),
        *not_once(env, "metric", "alias-table", (alias.name for alias in aliases.ALIASES)),
        *wordless(*metrics.METRICS.values(), *aliases.ALIASES),
    ]
    for problem in problems:
        LOG.warning(problem, type="bound", subtype="metrics-table")


def wordless(*described: metrics.Metric | aliases.Alias) -> Iterator[str]:
    """One line for each text of a metric that is empty."""
    for metric in described:
        texts = {name: value for name, value in vars(metric).items() if isinstance(value, str)}
        yield from (f"metric {metric.name} has no {name}" for name, value in texts.items() if not value.strip())


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the two directives, and check the pages together once all are read."""
    app.connect("env-check-consistency", every_metric_is_documented)
    app.setup_extension("anchors")
    app.add_directive("metrics-table", MetricsTable)
    app.add_directive("alias-table", AliasTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
