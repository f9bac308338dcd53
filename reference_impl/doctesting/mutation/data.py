"""Changes to data: each key and each scalar of a YAML, TOML or JSON fence."""

import re
from collections.abc import Iterator

import yaml

from reference_impl.doctesting.mutation.edits import Edit, different, misspelt

_TOML = re.compile(r"^\s*(?:\[+(?P<table>[^\]]+)\]+|(?P<key>[\w.\"'-]+)\s*=\s*(?P<value>[^#\n]*[^#\s]))", re.MULTILINE)


def yaml_edits(source: str) -> Iterator[Edit]:
    """Change each key and each scalar of YAML, and so of JSON; what cannot be read is left alone."""
    try:
        documents = list(yaml.compose_all(source, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        return
    for document in documents:
        yield from _node_edits(document, source, "value", set())


def _node_edits(node: yaml.Node | None, source: str, kind: str, seen: set[int]) -> Iterator[Edit]:
    """Change what is at and below a node, each node once: an alias leads back to a node that was seen."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _node_edits(key, source, "key", seen)
            yield from _node_edits(value, source, "value", seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _node_edits(item, source, "value", seen)
    elif isinstance(node, yaml.ScalarNode):
        written = source[node.start_mark.index : node.end_mark.index]
        changed = misspelt(written) if kind == "key" else different(written)
        if changed is not None:
            yield Edit(node.start_mark.index, written, changed, kind)


def toml_edits(source: str) -> Iterator[Edit]:
    """Change each table's name, each key, and each value that stands on one line."""
    for found in _TOML.finditer(source):
        for group, kind in (("table", "key"), ("key", "key"), ("value", "value")):
            written = found[group]
            changed = None if written is None else misspelt(written) if kind == "key" else different(written)
            if changed is not None:
                yield Edit(found.start(group), written, changed, kind)
