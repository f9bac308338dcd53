"""Reads one recipe file and the parents that it names with `defaults:` into layers, weakest first."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reference_impl.config.errors import ConfigError

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_FLOAT = "tag:yaml.org,2002:float"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Layer:
    """One mapping of a recipe and where it came from.

    `source` is what an error calls it: the path as it was reached, or `command line`. `inherited` says that a `defaults:`
    brought it in, so that nobody who uses the recipe wrote it there on purpose.
    """

    source: str
    tree: dict[str, Any]
    inherited: bool = False


class _RecipeLoader(yaml.SafeLoader):
    """Safe YAML, without dates and with the numbers that people write."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is written twice: YAML would keep the last one without a word."""
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(problem=f"key {key.value!r} twice", problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


# No recipe key is a date, and a run name such as 2026-01-31 should stay the string that it looks like.
_RecipeLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != _TIMESTAMP]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 takes `1e-5` for a string, since it has no dot; everyone who writes it means a number.
_RecipeLoader.add_implicit_resolver(
    _FLOAT, re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    """The value that `text` spells; raises {class}`ConfigError` with `source`, line and column (from 1) if it spells none."""
    try:
        return yaml.load(text, Loader=_RecipeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "line 1, column 1"
        raise ConfigError(f"{source}: {at}: not valid YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{source}: {_place(text, error.position)}: a control character") from error
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply to be a recipe") from error


def read_layers(path: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
    """The layers of the recipe at `path`: those of its parents in the order in which it names them, then its own.

    `chain` holds the files that led here, the recipe that the user named first; whoever calls from outside leaves it out.
    Raises {class}`ConfigError` for a file that is missing or is not a YAML mapping, and for parents that go in a circle.
    """
    _refuse_cycle(path, chain)
    tree = _read_mapping(path, chain[-1] if chain else None)
    parents = _parent_paths(path, tree.pop("defaults", None))
    inherited = [layer for parent in parents for layer in read_layers(parent, (*chain, path))]
    return [*inherited, Layer(str(path), tree, inherited=bool(chain))]


def _refuse_cycle(path: Path, chain: tuple[Path, ...]) -> None:
    if path.resolve() in [seen.resolve() for seen in chain]:
        circle = " -> ".join(str(step) for step in (*chain, path))
        raise ConfigError(f"{chain[0]}: defaults: these files inherit from each other: {circle}")


def _read_mapping(path: Path, named_by: Path | None) -> dict[str, Any]:
    """The top level of one file. An empty file is an empty mapping: it asks for every default."""
    source = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        readable = error.object[: error.start].decode()
        raise ConfigError(f"{source}: {_place(readable, len(readable))}: not UTF-8 text") from error
    except OSError as error:
        who = f"{named_by}: defaults: " if named_by else ""
        what = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ConfigError(f"{who}{source}: {what}") from error
    tree = parse_yaml(text, source)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: the top level is a {type(tree).__name__}; expected a mapping of keys to values")
    return tree


def _parent_paths(path: Path, defaults: Any) -> list[Path]:
    """What `defaults:` names, found from the folder of the file that names it."""
    names = [] if defaults is None else defaults if isinstance(defaults, list) else [defaults]
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{path}: defaults: {defaults!r} is not a path or a list of paths")
    # Not `resolve()`: an error should show the path that the user can find in the file, links and all.
    return [Path(os.path.normpath(path.parent / name)) for name in names]


def _place(text: str, index: int) -> str:
    before = text[:index]
    return f"line {before.count(chr(10)) + 1}, column {index - before.rfind(chr(10))}"
