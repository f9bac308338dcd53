"""Looks a recipe over: everything that is wrong with its layers, each with the file and line where it can be mended."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from reference_impl.config.checking import Problem, key_problems, section_model, value_problems
from reference_impl.config.findings import Finding
from reference_impl.config.interpolation import grammar_problems, resolve, root_of
from reference_impl.config.merging import merge
from reference_impl.config.reading import Layer
from reference_impl.config.schema import Follows, Recipe
from reference_impl.config.trees import MISSING, leaves, lookup, with_value


@dataclass(frozen=True)
class Examination:
    """What came of it: the findings, and the recipe with the default at each key that a finding is about.

    Without findings that is the recipe which the layers spell.
    """

    recipe: Recipe
    findings: tuple[Finding, ...]
    layers: Sequence[Layer]


def defaults_tree(model: type[BaseModel]) -> dict[str, Any]:
    """The documented defaults of a model as a tree, with interpolation where one key follows another."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        section = section_model(field.annotation)
        follows = [mark.expression for mark in field.metadata if isinstance(mark, Follows)]
        if section:
            tree[name] = defaults_tree(section)
        else:
            tree[name] = follows[0] if follows else field.default
    return tree


DEFAULTS = defaults_tree(Recipe)
_PLAIN_DEFAULTS = resolve(DEFAULTS, Recipe, [])


def examine(layers: Sequence[Layer], fallback: str) -> Examination:
    """Merge the layers and check the whole; a problem that no layer wrote is blamed on `fallback`."""
    merged, clashes = merge(DEFAULTS, layers)
    findings = [finding for layer in layers for finding in layer.problems]
    findings += [_finding(clash.layer, clash.problem, layers) for clash in clashes]
    for layer in layers:
        written = [*grammar_problems(layer.tree), *key_problems(Recipe, layer.tree)]
        # What `_override_`, or a scalar in place of the section, took out again harms nobody.
        findings += [
            _finding(layer, problem, layers) for problem in written if lookup(merged, bare(problem.key)) is not MISSING
        ]
    unresolved: list[Problem] = []
    resolved = resolve(merged, Recipe, unresolved)
    explicit = _explicit(layers, merged)
    others = {key: value for key, value in leaves(merged) if lookup(DEFAULTS, key) is MISSING}
    recipe, wrong = _validate(resolved, unresolved, {"explicit": explicit, "others": others})
    nobody = Layer(fallback, {})
    for problem in _without_echoes([*unresolved, *wrong], merged):
        finding = _finding(origin(problem.key, layers) or nobody, problem, layers)
        if not any(finding.key == other.key and finding.place == other.place for other in findings):
            findings.append(finding)
    return Examination(recipe, tuple(findings), layers)


def bare(key: str) -> str:
    """A dotted key without the index of a list's item."""
    return key.partition("[")[0]


def origin(key: str, layers: Sequence[Layer]) -> Layer | None:
    """The last layer that wrote this key, which is where it can be mended."""
    return next((layer for layer in reversed(layers) if lookup(layer.tree, bare(key)) is not MISSING), None)


def _finding(layer: Layer, problem: Problem, layers: Sequence[Layer]) -> Finding:
    text = problem.text
    if problem.code == "section":
        text += _replaced_section(layer, problem.key, layers)
    return Finding(layer.source, line_of(layer, problem.key), None, "error", problem.key, text, problem.code)


def line_of(layer: Layer, key: str) -> int | None:
    """The line on which a layer writes this key, an item of a list included."""
    return layer.lines.get(key, layer.lines.get(bare(key)))


def _replaced_section(layer: Layer, key: str, layers: Sequence[Layer]) -> str:
    """Where the section is that something else was put in place of."""
    for below in reversed(layers[: layers.index(layer)] if layer in layers else layers):
        if isinstance(lookup(below.tree, key), dict):
            line = line_of(below, key)
            return f"; it would replace the section at {below.source}" + (f":{line}" if line else "")
    return ""


def _validate(
    resolved: dict[str, Any], unresolved: Sequence[Problem], context: dict[str, Any]
) -> tuple[Recipe, list[Problem]]:
    """The recipe, and what pydantic says. A wrong value gives way to the default, so that the checks of whole sections run."""
    tree = resolved
    problems: list[Problem] = []
    skip = {problem.key for problem in unresolved}
    for key in skip:
        tree = with_value(tree, key, lookup(_PLAIN_DEFAULTS, key))
    while True:
        try:
            return Recipe.model_validate(tree, context=context), problems
        except ValidationError as error:
            found = [problem for problem in value_problems(error) if problem.key not in skip]
        problems += found
        for problem in found:
            tree = with_value(tree, bare(problem.key), lookup(_PLAIN_DEFAULTS, bare(problem.key)))


def _without_echoes(problems: Sequence[Problem], merged: dict[str, Any]) -> Iterator[Problem]:
    """Leave out a key that only follows another one that is reported too: one mistake, one line."""
    reported = {problem.key for problem in problems}
    for problem in problems:
        root = root_of(problem.key, merged)
        if root == problem.key or root not in reported:
            yield problem


def _explicit(layers: Sequence[Layer], merged: dict[str, Any]) -> set[str]:
    """The keys that somebody chose; see {attr}`Recipe.explicit`."""
    written = {key for layer in layers if not layer.inherited for key, _ in leaves(layer.tree)}
    inherited = {key for layer in layers if layer.inherited for key, _ in leaves(layer.tree)}
    return written | {key for key in inherited if lookup(merged, key) != lookup(DEFAULTS, key)}
