"""The tables of metrics hold the registry, can be linked to, and refuse a system that is not known."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

from reference_impl.staleness.aliases import ALIASES, SYSTEMS, aliases_of
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
    tables = ["{metrics-table}", *(f"{{alias-table}} {system}" for system in SYSTEMS)]
    page = "[the mean](#metric-mean_policy_staleness)\n\n" + "\n".join(f"```{table}\n```\n" for table in tables)
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
    assert rows_of(app)[len(METRICS) :][: len(expected)] == expected


def test_every_metric_can_be_linked_to(app: Sphinx) -> None:
    html = (Path(app.outdir) / "index.html").read_text("utf-8")
    for name in METRICS:
        assert html.count(f'id="metric-{name}"') == 1
    # From the page, from the name itself, and wherever another system's metric is compared with it.
    said = [f"{alias.unit} {alias.formula} {alias.population} {alias.difference}" for alias in ALIASES]
    compared = sum(len(re.findall(r"\bmean_policy_staleness\b", words)) for words in said)
    assert compared > 1
    assert html.count('href="#metric-mean_policy_staleness"') == 2 + compared


def test_another_system_is_refused_by_name(tmp_path: Path) -> None:
    _, warnings = build(tmp_path, "```{alias-table} Verl\n```\n")
    assert "expected one of NeMo RL, AReaL, PipelineRL, prime-rl, verl, SkyRL, miles, got 'Verl'" in warnings


def test_a_metric_that_no_table_shows_is_a_warning(tmp_path: Path) -> None:
    """As when a page loses its table, or a system gets none."""
    _, warnings = build(tmp_path, "```{alias-table} NeMo RL\n```\n")
    assert "metric mean_policy_staleness is in no {metrics-table}" in warnings
    assert "metric v_theta is in no {alias-table}" in warnings
    assert "metric avg_trajectory_age" not in warnings


def test_a_metric_that_two_tables_show_is_a_warning(tmp_path: Path) -> None:
    _, warnings = build(tmp_path, "```{metrics-table}\n```\n\n```{metrics-table}\n```\n")
    assert "metric mean_policy_staleness is in 2 tables of the kind {metrics-table}" in warnings


def test_a_metric_without_a_formula_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "consumed_tokens", replace(METRICS["consumed_tokens"], formula=" "))
    _, warnings = build(tmp_path, "```{metrics-table}\n```\n")
    assert "metric consumed_tokens has no formula" in warnings
