"""Tables of a command's options, made from the application: `{command-table} genref generate`.

Every command of `genref` is to have one somewhere, and every option a help text; what lacks it is a warning.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from bound_values import command_anchor
from command_line import COMMANDS, Command, Option, UnknownNameError, find_command
from doc_tables import Cell, TableDirective, not_once, text
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

LOG = logging.getLogger(__name__)
_OPTION = re.compile(r"(?<![\w`'-])(--?[a-z][\w-]*)")


class CommandTable(TableDirective):
    """A command's line of help, and a row for each argument and option."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        try:
            command = find_command(self.arguments[0]).command
        except UnknownNameError as error:
            LOG.warning(
                "{command-table}: %s", error, type="bound", subtype="command-table", location=self.get_location()
            )
            return []
        for file in command.files:
            self.env.note_dependency(file)
        self.note_shown("command", command.name)
        rows = [self._row(command, option) for option in command.options]
        table = [self.table(["Option", "What it does"], rows, "options")] if rows else []
        return [self.target(command_anchor(command.name)), text(command.help), *table]

    def _row(self, command: Command, option: Option) -> list[Cell]:
        shown = f"{', '.join(option.names)}{option.value and f' {option.value}'}"
        # An option that another one's help names is code, and its dashes stay two.
        help_text = text(_OPTION.sub(r"`\1`", option.help))
        if option.default:
            help_text += [nodes.Text(" Default: "), nodes.literal("", option.default), nodes.Text(".")]
        return [[self.anchored(command_anchor(command.name, option.names[0]), shown)], [help_text]]


def every_command_is_documented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of commands without a table and of options without a word."""
    for problem in (*not_once(env, "command", "command-table", COMMANDS), *wordless(COMMANDS.values())):
        LOG.warning(problem, type="bound", subtype="command-table")


def wordless(commands: Iterable[Command]) -> Iterator[str]:
    """One line for each option that has no help text."""
    for command in commands:
        bare = (option.names[0] for option in command.options if not option.help.strip())
        yield from (f"option {name} of {command.name} has no help text" for name in bare)


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the directive, and check the pages together once all are read."""
    app.add_directive("command-table", CommandTable)
    app.connect("env-check-consistency", every_command_is_documented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
