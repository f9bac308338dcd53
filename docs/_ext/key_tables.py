"""Tables of the recipe's keys: `{key-table}`, laid out by hand and filled from the schema, and `{removed-table}`.

The body lists keys, one a line; an argument names the section that they are relative to. A key of the schema that stands
in no table, or in two, is a warning: whoever adds a key says where a reader finds it.
"""

from typing import Any

from doc_tables import Cell, TableDirective, not_once, text
from docutils import nodes
from schema_keys import KEYS, Key, UnknownNameError, did_you_mean, find
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

from reference_impl.config import removed, schema, upstream
from reference_impl.config.checking import show
from reference_impl.config.upstream import UPSTREAM_KEYS

LOG = logging.getLogger(__name__)
TITLES = ["Key, type, default", "What it does", "In Megatron Core, since when"]
SECTION_TITLES = ["Section", "What it holds"]


class KeyTable(TableDirective):
    """The keys that the body lists, each in a row that can be linked to as `key-<full dotted key>`."""

    optional_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        for file in (schema.__file__, upstream.__file__):
            self.env.note_dependency(file)
        section = f"{self.arguments[0]}." if self.arguments else ""
        rows = []
        for number, line in enumerate(self.content):
            name = f"{section}{line.strip()}"
            if not line.strip():
                continue
            if name not in KEYS:
                # MyST counts the body's lines from the fence.
                place = (self.env.docname, self.lineno + self.content_offset + number + 1)
                message = f"{{key-table}}: unknown key {name!r}{did_you_mean(name, list(KEYS))}"
                LOG.warning(message, type="bound", subtype="key-table", location=place)
                continue
            self.note_shown("key", name)
            rows.append(self._row(KEYS[name], line.strip()))
        if all(len(row) == len(SECTION_TITLES) for row in rows):
            return [self.table(SECTION_TITLES, rows, "options")]
        return [self.table(TITLES, [[*row, *([[]] * (len(TITLES) - len(row)))] for row in rows], "keys")]

    def _row(self, key: Key, shown: str) -> list[Cell]:
        name, what = self.anchored(f"key-{key.name}", shown), [self.linked(key.description, _anchor_of)]
        if key.is_section:
            return [[name], what]
        known = UPSTREAM_KEYS[key.name]
        if known.on_cpu != upstream.AS_ON_CUDA:
            what.append(self.linked(f"On a CPU: {known.on_cpu}", _anchor_of))
        unit = [text(f"Unit: {known.unit}")] if known.unit else []
        default = nodes.paragraph("", "Default: ", nodes.literal("", key.default))
        where = [text(f"`{known.object}`"), text(f"`{known.field}`")] if known.object else [text("none")]
        since = "Only in this project" if known.since == upstream.OURS else f"Since {known.since}"
        return [
            [name, text(key.type), *unit, default],
            what,
            [*where, text(since)],
        ]


def _anchor_of(name: str) -> str | None:
    """Where a name in a description is described itself, if it is a key."""
    try:
        return f"key-{find(name).name}"
    except UnknownNameError:
        return None


class RemovedTable(TableDirective):
    """Every key that is gone, in a row that can be linked to as `removed-<key>`."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(removed.__file__)
        rows: list[list[Cell]] = [
            [
                [self.anchored(f"removed-{name}", name)],
                [text(key.advice), text(f"Gone: {key.since}."), text(by_fix(key))],
            ]
            for name, key in removed.REMOVED_KEYS.items()
        ]
        return [self.table(["Key", "What became of it"], rows, "options")]


def by_fix(key: removed.RemovedKey) -> str:
    """What `genref lint --fix` makes of a removed key."""
    if key.rewrite is None:
        return "`genref lint --fix` deletes it."
    rewritten = (f"`{show(old)}` into `{name}: {new}`" for old, (name, new) in key.rewrite.items())
    return f"`genref lint --fix` turns {', '.join(rewritten)}."


def every_key_is_documented(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of keys that stand in no table, and of those that stand in several."""
    for problem in not_once(env, "key", "key-table", KEYS):
        LOG.warning(problem, type="bound", subtype="key-table")


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the directives, and check the pages together once all are read."""
    app.setup_extension("anchors")
    app.add_directive("key-table", KeyTable)
    app.add_directive("removed-table", RemovedTable)
    app.connect("env-check-consistency", every_key_is_documented)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
