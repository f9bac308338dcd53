"""Lets the search box find keys, metrics and commands by name: the row that describes one comes before pages that mention it.

Sphinx's search looks among the objects of all domains first. This domain holds what the generated tables anchor.
"""

from collections.abc import Iterator
from typing import Any

from bound_values import command_anchor
from command_line import COMMANDS
from sphinx.application import Sphinx
from sphinx.domains import Domain, ObjType

FIRST = 0
"""Priority in search: before a class or a function of the same name, which has 1."""

KINDS = {"key-": "key", "metric-": "metric", "removed-": "removed"}
WORDS = {
    "key": "key of a recipe",
    "metric": "metric",
    "removed": "key that is gone",
    "command": "command",
    "option": "option",
}


class Findable(Domain):
    """Rows of tables as objects; links to them are `anchors.link_to`, not roles of this domain."""

    name = "genref"
    label = "Generation reference"
    object_types = {kind: ObjType(word) for kind, word in WORDS.items()}  # noqa: RUF012 - as Sphinx declares it

    def get_objects(self) -> Iterator[tuple[str, str, str, str, str, int]]:
        """Yield name, shown name, kind, page, anchor and priority of each."""
        commands = {command_anchor(name): ("command", name) for name in COMMANDS}
        commands |= {
            command_anchor(name, option.names[0]): ("option", f"{name} {option.names[0]}")
            for name, command in COMMANDS.items()
            for option in command.options
        }
        for label, (page, anchor) in self.env.domains.standard_domain.anonlabels.items():
            prefix = label.partition("-")[0] + "-"
            if prefix in KINDS:
                name = label.removeprefix(prefix)
                yield name, name, KINDS[prefix], page, anchor, FIRST
            elif label in commands:
                kind, name = commands[label]
                yield name, name, kind, page, anchor, FIRST

    def resolve_any_xref(self, *_: Any) -> list[Any]:
        """Nothing: a name in plain text is not meant."""
        return []

    def merge_domaindata(self, docnames: Any, otherdata: Any) -> None:
        """Nothing is kept here, so nothing is merged when pages are read in parallel."""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_domain(Findable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
