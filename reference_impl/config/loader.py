"""Turns a recipe file and command-line overrides into a checked {class}`Recipe`.

Defaults, parents, the recipe and the overrides are merged first, and interpolation is resolved last. So a default that
follows another key follows the value that an override gave it: `policy.max_total_sequence_length=1024` moves
`max_new_tokens` and `max_model_len` as well, in a recipe that never mentions them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from reference_impl.config.checking import Problem, key_problems, section_model, show, value_problems
from reference_impl.config.errors import LIKELY, ConfigError, nearest
from reference_impl.config.overrides import COMMAND_LINE, apply_overrides
from reference_impl.config.reading import Layer, read_layers
from reference_impl.config.schema import Follows, Recipe
from reference_impl.config.trees import MISSING, leaves, lookup, without

_REFERENCE = re.compile(r"\$\{(?P<dots>\.*)(?P<name>[A-Za-z_][\w.]*)\}")


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe at `path` with its parents and the overrides; `None` means the documented defaults alone.

    Precedence, weakest first: documented defaults, the files under `defaults:` in the order in which they are named, the
    recipe, the overrides from left to right. Sections that are not read here may hold anything, an interpolation that
    only a trainer can resolve included.

    Raises {class}`~reference_impl.config.errors.ConfigError` with one line for each problem of the merged recipe. A file
    that cannot be read, or a malformed override, is reported alone: what follows from it is not known.
    """
    defaults = defaults_tree(Recipe)
    layers = apply_overrides([] if path is None else read_layers(Path(path)), overrides, defaults)
    merged = _merge(defaults, layers)
    raw = cast(dict[str, Any], OmegaConf.to_container(merged, resolve=False))
    problems = list(key_problems(Recipe, raw))
    resolved = _resolve(merged, Recipe, raw, problems)
    try:
        recipe = Recipe.model_validate(resolved, context={"explicit": _explicit(layers, raw, defaults)})
    except ValidationError as error:
        # A key whose interpolation failed is missing here for that reason alone.
        known = {problem.key for problem in problems}
        problems += [problem for problem in value_problems(error) if problem.key not in known]
    if problems:
        fallback = COMMAND_LINE if path is None else str(path)
        lines = [f"{_origin(p.key, layers, fallback)}: {p.key}: {p.text}" for p in _without_echoes(problems, raw)]
        raise ConfigError("\n".join(lines))
    return recipe


def resolved_yaml(recipe: Recipe) -> str:
    """The recipe as YAML, every default filled in and every interpolation replaced; it loads to an equal recipe."""
    return yaml.safe_dump(recipe.model_dump(), sort_keys=False)


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


def _merge(defaults: dict[str, Any], layers: Sequence[Layer]) -> DictConfig:
    """All layers on top of the defaults; an error names the layer that does not fit."""
    merged = OmegaConf.create(defaults)
    for layer in layers:
        tree = layer.tree
        # NeMo RL's marker: this top-level section replaces what the parents say instead of being merged into it.
        for name in [name for name in tree if lookup(tree, f"{name}._override_") is True]:
            tree = without(tree, f"{name}._override_")
            merged[name] = defaults.get(name, {})
        try:
            merged = cast(DictConfig, OmegaConf.merge(merged, OmegaConf.create(tree)))
        except OmegaConfBaseException as error:
            where = f"{error.full_key}: " if error.full_key else ""
            raise ConfigError(f"{layer.source}: {where}{_first_line(error)}") from error
        except TypeError as error:
            clash = _list_against_section(OmegaConf.to_container(merged, resolve=False), tree)
            raise ConfigError(f"{layer.source}: {clash}") from error
        except RecursionError as error:
            raise ConfigError(f"{layer.source}: an anchor that contains itself") from error
    return merged


def _list_against_section(below: Any, above: Any, prefix: str = "") -> str | None:
    """Where a list is put on a mapping or a mapping on a list, which OmegaConf's error leaves out."""
    for name in above if isinstance(above, dict) and isinstance(below, dict) else ():
        new, old = above[name], below.get(name)
        if isinstance(new, list) and isinstance(old, dict):
            return f"{prefix}{name}: {show(new)} is not a mapping"
        if isinstance(new, dict) and isinstance(old, list):
            return f"{prefix}{name}: {show(new)} is not a list"
        if found := _list_against_section(old, new, f"{prefix}{name}."):
            return found
    return None


def _resolve(
    node: DictConfig, model: type[BaseModel], raw: dict[str, Any], problems: list[Problem], prefix: str = ""
) -> dict[str, Any]:
    """The values of the keys that the model knows, interpolation replaced; what cannot be is added to `problems`."""
    tree: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        section = section_model(field.annotation)
        try:
            # Not `name in node`, which says no to a key whose interpolation fails.
            value = node[name] if name in list(node.keys()) else MISSING
            if section and isinstance(value, DictConfig):
                value = _resolve(value, section, raw, problems, f"{key}.")
            elif OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except (OmegaConfBaseException, RecursionError) as error:
            problems.append(Problem(key, _unresolved(lookup(raw, key), error, raw)))
        else:
            if value is not MISSING:
                tree[name] = value
    return tree


def _unresolved(expression: Any, error: Exception, raw: dict[str, Any]) -> str:
    """Why an expression has no value, and the key that it probably meant."""
    if expression is MISSING:
        return f"cannot be resolved ({_first_line(error)})"
    names = re.findall(r"\$\{([A-Za-z_][\w.]*)\}", str(expression))
    absent = next((name for name in names if lookup(raw, name) is MISSING), None)
    if absent is None:
        return f"cannot resolve {expression} ({_first_line(error)})"
    near = nearest(absent, [key for key, _ in leaves(raw)], cutoff=LIKELY)
    hint = f"; did you mean ${{{near}}}?" if near else ""
    return f"cannot resolve {expression}: there is no key {absent}{hint}"


def _without_echoes(problems: list[Problem], raw: dict[str, Any]) -> list[Problem]:
    """Leave out a key that only follows another one that is reported too: one mistake, one line."""
    reported = {problem.key for problem in problems}
    return [p for p in problems if (root := _root(p.key, raw)) == p.key or root not in reported]


def _root(key: str, raw: dict[str, Any]) -> str | None:
    """The key whose value this one takes, through any number of plain `${...}`; `None` where they go in a circle."""
    seen: set[str] = set()
    while match := _REFERENCE.fullmatch(str(lookup(raw, key))):
        if key in seen:
            return None
        seen.add(key)
        # One dot is the section of the key itself, each further one the section around it.
        section = key.split(".")[: -len(match["dots"])] if match["dots"] else []
        key = ".".join([*section, match["name"]])
    return key


def _explicit(layers: Sequence[Layer], raw: dict[str, Any], defaults: dict[str, Any]) -> set[str]:
    """The keys that somebody chose; see {attr}`Recipe.explicit`."""
    written = {key for layer in layers if not layer.inherited for key, _ in leaves(layer.tree)}
    inherited = {key for layer in layers if layer.inherited for key, _ in leaves(layer.tree)}
    return written | {key for key in inherited if lookup(raw, key) != lookup(defaults, key)}


def _origin(key: str, layers: Sequence[Layer], fallback: str) -> str:
    """The last layer that wrote this key, which is where it can be mended."""
    bare = key.partition("[")[0]
    return next((layer.source for layer in reversed(layers) if lookup(layer.tree, bare) is not MISSING), fallback)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
