"""Replaces `${...}` in the keys that are read here; the sections of others may hold what only their reader can resolve.

Nearly every expression is one plain reference, which is followed without OmegaConf. Whatever else there is, its own
parser and nodes resolve, so that a recipe means what it means in NeMo RL.
"""

import functools
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from reference_impl.config.checking import Problem, section_model
from reference_impl.config.errors import LIKELY, nearest
from reference_impl.config.trees import MISSING, leaves, lookup

_REFERENCE = re.compile(r"\$\{(?P<dots>\.*)(?P<name>[A-Za-z_][\w.]*)\}")
# Text whose every `${` begins a plain reference: OmegaConf's grammar accepts it, and need not be asked.
_PLAIN = re.compile(r"(?:[^$\\]|\$(?!\{)|\$\{\.*[A-Za-z_][\w.]*\})*")
UNSET = "???"
"""OmegaConf's spelling of a value that somebody has yet to give."""


def root_of(key: str, tree: dict[str, Any]) -> str | None:
    """The key whose value this one takes, through any number of plain `${...}`; `None` where they go in a circle."""
    seen: set[str] = set()
    while match := _REFERENCE.fullmatch(str(lookup(tree, key))):
        if key in seen:
            return None
        seen.add(key)
        # One dot is the section of the key itself, each further one the section around it.
        section = key.split(".")[: -len(match["dots"])] if match["dots"] else []
        key = ".".join([*section, match["name"]])
    return key


def resolve(tree: dict[str, Any], model: type[BaseModel], problems: list[Problem]) -> dict[str, Any]:
    """The values of the keys that the model knows, interpolation replaced; what cannot be is added to `problems`."""
    return _Resolver(tree, problems).section(tree, model, "")


def grammar_problems(tree: Any, prefix: str = "") -> Iterator[Problem]:
    """Every `${` that begins no expression, in the sections of others as well: NeMo RL would not load the file."""
    if isinstance(tree, str):
        if "${" in tree and not _PLAIN.fullmatch(tree) and (fault := _grammar_fault(tree)):
            yield Problem(prefix, fault, "interpolation")
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from grammar_problems(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from grammar_problems(value, f"{prefix}[{number}]")


@functools.lru_cache(maxsize=4096)
def _grammar_fault(text: str) -> str | None:
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    try:
        parse(text)
    except GrammarParseError as error:
        return _first_line(error)
    except RecursionError:
        return "an expression nested too deeply"
    return None


class _Resolver:
    def __init__(self, tree: dict[str, Any], problems: list[Problem]) -> None:
        self.tree = tree
        self.problems = problems

    @functools.cached_property
    def config(self) -> Any:
        """The whole tree as OmegaConf's nodes, which takes a while for a large recipe and is seldom needed."""
        from omegaconf import OmegaConf

        return OmegaConf.create(self.tree)

    def section(self, tree: dict[str, Any], model: type[BaseModel], prefix: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, field in model.model_fields.items():
            key, inner = f"{prefix}{name}", section_model(field.annotation)
            value = tree.get(name, MISSING)
            if inner and isinstance(value, dict):
                value = self.section(value, inner, f"{key}.")
            elif _is_expression(value):
                value = self.value(key, value)
            if value is not MISSING:
                result[name] = value
        return result

    def value(self, key: str, expression: Any) -> Any:
        """What an expression comes to, or {data}`MISSING` and a problem."""
        if expression == UNSET:
            self.problems.append(Problem(key, f"{UNSET} has yet to be given; expected a value", "unset"))
            return MISSING
        root = root_of(key, self.tree)
        target = lookup(self.tree, root) if root else MISSING
        if target is not MISSING and not _is_expression(target) and not isinstance(target, dict):
            return target
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            node = self.config
            for part in key.split("."):
                node = node[part]
            if OmegaConf.is_config(node):
                return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
            return node
        except (OmegaConfBaseException, RecursionError, TypeError, ArithmeticError) as error:
            self.problems.append(Problem(key, _unresolved(expression, error, self.tree), _kind(error)))
            return MISSING


def _is_expression(value: Any) -> bool:
    if isinstance(value, str):
        return "${" in value or value == UNSET
    if isinstance(value, dict):
        return any(map(_is_expression, value.values()))
    return isinstance(value, list) and any(map(_is_expression, value))


def _kind(error: Exception) -> str:
    """A function or a variable that only another program has is no fault of the file."""
    elsewhere = ("Unsupported interpolation type", "Environment variable")
    return "elsewhere" if any(text in str(error) for text in elsewhere) else "interpolation"


def _unresolved(expression: Any, error: Exception, raw: dict[str, Any]) -> str:
    """Why an expression has no value, and the key that it probably meant."""
    names = re.findall(r"\$\{([A-Za-z_][\w.]*)\}", str(expression))
    absent = next((name for name in names if lookup(raw, name) is MISSING), None)
    if absent is None:
        return f"cannot resolve {expression} ({_first_line(error)})"
    near = nearest(absent, [key for key, _ in leaves(raw)], cutoff=LIKELY)
    hint = f"; did you mean ${{{near}}}?" if near else ""
    return f"cannot resolve {expression}: there is no key {absent}{hint}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
