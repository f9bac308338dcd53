"""Command-line overrides, in the spelling that Hydra and NeMo RL taught people: `a.b=1`, `+a.b=1`, `++a.b=1`, `~a.b`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reference_impl.config.errors import NEAR_MISS, ConfigError, nearest
from reference_impl.config.parsing import parse_yaml
from reference_impl.config.reading import Layer
from reference_impl.config.removed import REMOVED_KEYS
from reference_impl.config.schema import MCORE_KEY
from reference_impl.config.trees import MISSING, keys, lookup, nested, without

COMMAND_LINE = "command line"

_SHAPE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[^\s=+~.]+(?:\.[^\s=.]+)*)(?:=(?P<value>.*))?", re.DOTALL)


@dataclass(frozen=True)
class Override:
    """One parsed override: `sign` is `""`, `"+"`, `"++"` or `"~"`; `value` is what its YAML spells, `None` for `~`."""

    sign: str
    key: str
    value: Any
    text: str


def parse_override(text: str) -> Override:
    """Take one override apart; raises {class}`ConfigError` if it has none of the four shapes or its value is not YAML."""
    match = _SHAPE.fullmatch(text)
    if match is None or (match["sign"] == "~") != (match["value"] is None):
        raise ConfigError(
            f"override {text!r}: malformed; write key=value, +key=value, ++key=value or ~key, with dots in the key "
            "and no space before ="
        )
    return Override(match["sign"] or "", match["key"], _value(match["value"], text), text)


def _value(spelled: str | None, text: str) -> Any:
    """What the text after the equals sign spells; its only line needs no number."""
    if spelled is None:
        return None
    try:
        document = parse_yaml(spelled, "")
        faults = document.problems
    except ConfigError as error:
        faults = error.findings
    if faults:
        raise ConfigError(f"override {text!r}: {faults[0].message}")
    return document.value


def apply_overrides(layers: Sequence[Layer], texts: Sequence[str], defaults: dict[str, Any]) -> list[Layer]:
    """The layers with each override applied in turn; a later one sees what an earlier one did.

    `defaults` is the tree of documented defaults: its keys may be set without a `+`, although no file holds them.
    """
    result = list(layers)
    for text in texts:
        override = parse_override(text)
        _check(override, result, defaults)
        if override.sign == "~":
            result = [replace(layer, tree=without(layer.tree, override.key)) for layer in result]
        else:
            result.append(Layer(COMMAND_LINE, nested(override.key, override.value)))
    return result


def _check(override: Override, layers: Sequence[Layer], defaults: dict[str, Any]) -> None:
    """Hold the sign against what is there: only `++` does not care."""
    key, text = override.key, override.text
    written = any(lookup(layer.tree, key) is not MISSING for layer in layers)
    if override.sign == "+" and written:
        raise ConfigError(f"override {text!r}: {key} is already set; write {key}=value or ++{key}=value")
    if override.sign == "~" and not written:
        raise ConfigError(f"override {text!r}: {key} is not set, so there is nothing to remove{_hint(key, layers, {})}")
    if override.sign == "" and not written and lookup(defaults, key) is MISSING and not _is_removed(key):
        raise ConfigError(f"override {text!r}: no key {key}{_hint(key, layers, defaults) or f'; +{key}=value adds it'}")


def _is_removed(key: str) -> bool:
    """Whether a release once knew this key: it has a message of its own, which says more than that it is unknown."""
    section, _, name = key.rpartition(".")
    return section == MCORE_KEY and name in REMOVED_KEYS


def _hint(key: str, layers: Sequence[Layer], defaults: dict[str, Any]) -> str:
    known = {name for tree in [defaults, *(layer.tree for layer in layers)] for name in keys(tree)}
    near = nearest(key, sorted(known), cutoff=NEAR_MISS)
    return f"; did you mean {near}?" if near else ""
