"""Nested mappings addressed by dotted keys: the few things that overrides, checks and `explicit` all need."""

from collections.abc import Iterator
from typing import Any

MISSING: Any = object()


def lookup(tree: Any, key: str) -> Any:
    """The value at a dotted key, or {data}`MISSING`."""
    for part in key.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return MISSING
        tree = tree[part]
    return tree


def nested(key: str, value: Any) -> dict[str, Any]:
    """A tree with this one key: `nested("a.b", 1)` is `{"a": {"b": 1}}`."""
    return with_value({}, key, value)


def with_value(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the tree that holds this value at a dotted key; sections on the way that are missing are made."""
    head, _, rest = key.partition(".")
    return {**tree, head: with_value(tree.get(head, {}), rest, value) if rest else value}


def without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of the tree that lacks this key; everything else is shared, nothing is changed in place."""
    head, _, rest = key.partition(".")
    if lookup(tree, key) is MISSING:
        return tree
    if rest:
        return {**tree, head: without(tree[head], rest)}
    return {name: value for name, value in tree.items() if name != head}


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key that holds a value and not a section; an empty section counts as a value."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def keys(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Every dotted key, sections included."""
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")
