"""Puts the layers of a recipe on top of each other, weakest first, as OmegaConf does and without building its nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reference_impl.config.checking import Problem, show
from reference_impl.config.interpolation import UNSET, root_of
from reference_impl.config.reading import Layer
from reference_impl.config.trees import MISSING, lookup, without


@dataclass(frozen=True)
class Clash:
    """A list where a section should be, or the other way round, and the layer that put it there."""

    layer: Layer
    problem: Problem


def merge(defaults: dict[str, Any], layers: Sequence[Layer]) -> tuple[dict[str, Any], list[Clash]]:
    """All layers on top of the defaults, and what would not fit; nothing is changed in place."""
    merged: dict[str, Any] = {}
    clashes: list[Clash] = []
    for layer in layers:
        tree = layer.tree
        # NeMo RL's marker: this top-level section replaces what the parents say instead of being merged into it.
        for name in [name for name in tree if lookup(tree, f"{name}._override_") is True]:
            tree = without(tree, f"{name}._override_")
            merged = without(merged, name)
        problems: list[Problem] = []
        merged = _overlay(merged, tree, "", merged, problems)
        clashes += [Clash(layer, problem) for problem in problems]
    return _on_defaults(defaults, merged, "", merged), clashes


def _overlay(
    below: dict[str, Any], above: dict[str, Any], prefix: str, whole: dict[str, Any], problems: list[Problem]
) -> dict[str, Any]:
    """`above` on `below`. As in OmegaConf, `???` leaves a value that a parent gave, and a list and a section do not mix."""
    result = dict(below)
    for name, new in above.items():
        key, old = f"{prefix}{name}", below.get(name, MISSING)
        if isinstance(new, dict):
            old = _section(old, key, whole)
        if isinstance(new, dict) and isinstance(old, dict):
            result[name] = _overlay(old, new, f"{key}.", whole, problems)
        elif isinstance(new, dict) and isinstance(old, list):
            problems.append(Problem(key, f"{show(new)} is not a list", "section"))
        elif isinstance(new, list) and isinstance(old, dict):
            problems.append(Problem(key, f"{show(new)} is not a mapping", "section"))
        elif new != UNSET or old is MISSING:
            result[name] = new
    return result


def _on_defaults(defaults: dict[str, Any], tree: dict[str, Any], prefix: str, whole: dict[str, Any]) -> dict[str, Any]:
    """The tree with a default at every key that nobody wrote; here `???` stays, for it asks for a value."""
    result = {**defaults, **tree}
    for name, default in defaults.items():
        if isinstance(default, dict):
            key = f"{prefix}{name}"
            section = _section(tree.get(name, {}), key, whole)
            result[name] = _on_defaults(default, section, f"{key}.", whole) if isinstance(section, dict) else section
    return result


def _section(value: Any, key: str, whole: dict[str, Any]) -> Any:
    """The section that a value is by reference, if it is one: children add keys to it, and it has defaults, too."""
    root = root_of(key, whole) if isinstance(value, str) else None
    target = lookup(whole, root) if root else MISSING
    return target if isinstance(target, dict) else value
