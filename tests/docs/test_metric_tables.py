"""The tables of metrics hold the registry, can be linked to, and refuse a system that is not known."""

import io
from pathlib import Path

import pytest
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from reference_impl.staleness.aliases import aliases_of
from reference_impl.staleness.metrics import METRICS

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"
CONF = f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\nextensions = ['myst_parser', 'metric_tables']\n"


def build(folder: Path, page: str) -> tuple[Sphinx, str]:
    """A site of one page, and what it was warned about."""
    (folder / "conf.py").write_text(CONF)
    (folder / "index.md").write_text(f"# Page\n\n{page}")
    warnings = io.StringIO()
    with docutils_namespace():
        app = Sphinx(folder, folder, folder / "out", folder / "trees", "html", status=None, warning=warnings)
        app.build(force_all=True)
    return app, warnings.getvalue()


def rows_of(app: Sphinx) -> list[list[str]]:
    """The body's cells as text, with the quotation marks of the source."""
    return [
        [entry.astext().replace("’", "'") for entry in row.findall(nodes.entry)]
        for body in app.env.get_doctree("index").findall(nodes.tbody)
        for row in body.findall(nodes.row)
    ]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Sphinx:
    page = "[the mean](#metric-mean_policy_staleness)\n\n```{metrics-table}\n```\n\n```{alias-table} NeMo RL\n```\n"
    app, warnings = build(tmp_path_factory.mktemp("site"), page)
    assert not warnings
    return app


def test_every_metric_has_a_row_with_all_of_its_words(app: Sphinx) -> None:
    """In the registry's order; a cell's paragraphs are apart by an empty line."""
    expected = [
        [f"{metric.name}\n\n{metric.unit}", metric.formula, metric.population, metric.source]
        for metric in METRICS.values()
    ]
    assert rows_of(app)[: len(METRICS)] == expected


def test_the_aliases_of_a_system_have_a_row_each(app: Sphinx) -> None:
    expected = [
        [f"{alias.name}\n\n{alias.unit}", alias.formula, alias.population, f"{alias.difference}\n\n{alias.source}"]
        for alias in aliases_of("NeMo RL")
    ]
    assert rows_of(app)[len(METRICS) :] == expected


def test_every_metric_can_be_linked_to(app: Sphinx) -> None:
    html = (Path(app.outdir) / "index.html").read_text("utf-8")
    for name in METRICS:
        assert html.count(f'id="metric-{name}"') == 1
    # From the page, from the name itself, and from NeMo RL's table.
    assert html.count('href="#metric-mean_policy_staleness"') == 3


def test_another_system_is_refused_by_name(tmp_path: Path) -> None:
    _, warnings = build(tmp_path, "```{alias-table} Verl\n```\n")
    assert "expected one of NeMo RL, AReaL, PipelineRL, prime-rl, verl, SkyRL, miles, got 'Verl'" in warnings
