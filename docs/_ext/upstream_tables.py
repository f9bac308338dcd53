"""The pinned facts about another project as a table, object by object: `{upstream-table} megatron-core`."""

from itertools import groupby
from typing import Any

from doc_tables import Cell, TableDirective
from docutils import nodes
from sphinx.application import Sphinx
from upstream_signatures import declaration

from reference_impl.config import upstream_facts
from reference_impl.config.upstream_facts import MEGATRON_CORE, NEMO_RL, Fact

PROJECTS = {"megatron-core": MEGATRON_CORE, "nemo-rl": NEMO_RL}
_OF_MEMBERS = {"field", "signature", "value", "yaml"}


class UpstreamTable(TableDirective):
    """All facts of one project."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(upstream_facts.__file__)
        if self.arguments[0] not in PROJECTS:
            raise self.error(f"expected one of {', '.join(PROJECTS)}, got {self.arguments[0]!r}")
        groups = groupby(PROJECTS[self.arguments[0]], owner_of)
        rows = [_row(owner, list(facts)) for owner, facts in groups]
        return [self.table(["Object", "Pinned"], rows, "upstream")]


def owner_of(fact: Fact) -> str:
    """The class or file that a fact is about."""
    return fact.name.rpartition(".")[0] if fact.kind in _OF_MEMBERS else fact.name


def _row(owner: str, facts: list[Fact]) -> list[Cell]:
    """The last part of the owner's name and where it is, beside what is pinned of it."""
    where, _, name = owner.rpartition(":" if ":" in owner else ".")
    head = [nodes.paragraph("", "", nodes.literal("", name)), nodes.paragraph("", where)]
    return [head, [nodes.paragraph("", "", nodes.literal("", _shown(fact))) for fact in facts]]


def _shown(fact: Fact) -> str:
    if fact.kind not in _OF_MEMBERS:
        return fact.pinned
    return declaration(fact.name.rpartition(".")[2], fact)


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the directive."""
    app.add_directive("upstream-table", UpstreamTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
