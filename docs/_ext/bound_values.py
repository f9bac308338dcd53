"""Roles that take what prose says of keys, metrics, commands and Megatron Core from where it is defined.

`{key}`, `{default}`, `{type}`, `{removed}`, `{metric}`, `{command}` and `{sig}` show a value or link to the row that
describes it. A name that stands for nothing is a warning, and with `-W` the build fails.
"""

from typing import Any

import upstream_signatures
from anchors import link_to
from command_line import find_command
from docutils import nodes
from schema_keys import UnknownNameError, did_you_mean, find, refuse_bad_value, split_value
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import ReferenceRole, SphinxRole

from reference_impl.config import removed, schema, upstream_facts
from reference_impl.staleness import aliases, metrics

LOG = logging.getLogger(__name__)


class BoundRole(SphinxRole):
    """A role whose text is looked up; a failed lookup is a warning at the place of the role."""

    # What the page has to be read again for.
    sources: tuple[str, ...] = (schema.__file__,)

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Show what was found, or the text itself beside a warning."""
        for file in self.sources:
            self.env.note_dependency(file)
        try:
            return [self.show(self.text)], []
        except UnknownNameError as error:
            name = self.name.rpartition(":")[2]  # without the domain
            LOG.warning("{%s}: %s", name, error, type="bound", subtype=name, location=self.get_location())
            return [nodes.literal("", self.text)], []

    def show(self, text: str) -> nodes.Node:
        """The node for `text`; raises {class}`schema_keys.UnknownNameError`."""
        raise NotImplementedError

    def link(self, anchor: str, shown: str) -> nodes.Node:
        """Code that links to an anchor."""
        return link_to(anchor, nodes.literal("", shown), self.env.docname)


class KeyRole(BoundRole):
    """`{key}`: a key, or `key: value` with a value that the loader accepts, linked to the key's row."""

    def show(self, text: str) -> nodes.Node:
        name, value = split_value(text)
        key = find(name)
        if value is not None:
            refuse_bad_value(key, value)
        return self.link(f"key-{key.name}", text)


class DefaultRole(BoundRole):
    """`{default}`: the default of a key."""

    def show(self, text: str) -> nodes.Node:
        key = find(text)
        if key.is_section:
            raise UnknownNameError(f"{text!r} is a section and has no default")
        return nodes.literal("", key.default)


class TypeRole(BoundRole):
    """`{type}`: the type of a key in words."""

    def show(self, text: str) -> nodes.Node:
        return nodes.inline("", find(text).type)


class RemovedRole(BoundRole):
    """`{removed}`: a key that is gone, linked to its row in the table of those."""

    sources = (removed.__file__,)

    def show(self, text: str) -> nodes.Node:
        name = split_value(text)[0].rpartition(".")[2]
        if name not in removed.REMOVED_KEYS:
            raise UnknownNameError(f"{name!r} is no removed key{did_you_mean(name, list(removed.REMOVED_KEYS))}")
        return self.link(f"removed-{name}", text)


class MetricRole(BoundRole):
    """`{metric}`: a metric of ours or of another system, linked to its row."""

    sources = (metrics.__file__, aliases.__file__)

    def show(self, text: str) -> nodes.Node:
        known = [*metrics.METRICS, *(alias.name for alias in aliases.ALIASES)]
        if text not in known:
            raise UnknownNameError(f"unknown metric {text!r}{did_you_mean(text, known)}")
        return self.link(f"metric-{text}", text)


class CommandRole(ReferenceRole, BoundRole):
    """`{command}`: a command line of `genref`, linked to what it names last.

    `` {command}`--fix <genref lint --fix>` `` shows the end of it alone.
    """

    # The file to watch is the command's own.
    sources = ()

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """As for every bound role: the text is already parted into title and target."""
        return BoundRole.run(self)

    def show(self, text: str) -> nodes.Node:
        said = find_command(self.target)
        for file in said.command.files:
            self.env.note_dependency(file)
        if not self.target.endswith(self.title):
            raise UnknownNameError(f"{self.title!r} is not how {self.target!r} ends")
        return self.link(
            command_anchor(said.command.name, *(option.names[0] for option in said.options[-1:])), self.title
        )


class SignatureRole(BoundRole):
    """`{sig}`: a signature or a field's default, as the installed Megatron Core has it."""

    sources = (upstream_facts.__file__,)

    def show(self, text: str) -> nodes.Node:
        return nodes.literal("", upstream_signatures.signature(text))


def command_anchor(command: str, option: str = "") -> str:
    """Where a command or one of its options is described: `command-genref-lint`, `command-genref-lint--fix`."""
    return f"command-{command.replace(' ', '-')}{option and f'-{option.lstrip("-")}'}".lower()


ROLES: dict[str, type[BoundRole]] = {
    "key": KeyRole,
    "default": DefaultRole,
    "type": TypeRole,
    "removed": RemovedRole,
    "metric": MetricRole,
    "command": CommandRole,
    "sig": SignatureRole,
}


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the roles."""
    app.setup_extension("anchors")
    for name, role in ROLES.items():
        app.add_role(name, role(), override=name == "command")  # docutils has one for any program
    # Python's domain is asked first, and has a role of this name for `type` statements, which no page links to.
    app.add_role_to_domain("py", "type", TypeRole(), override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
