"""Finds what is wrong with a merged recipe and says it in the recipe's own terms, one line per problem."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from reference_impl.config.errors import LIKELY, NEAR_MISS, nearest
from reference_impl.config.removed import REMOVED_KEYS
from reference_impl.config.schema import MCORE_KEY, Recipe
from reference_impl.config.training_keys import TRAINING_KEYS

# What to write where the type alone does not say it.
ADVICE = {
    "temperature": "write 0 for greedy or 1.0",
    "val_temperature": "write 0 for greedy or 1.0",
    "top_p": "write 1.0 to keep all tokens",
    "val_top_p": "write 1.0 to keep all tokens",
    "top_k": "write null to keep all tokens",
    "val_top_k": "write null to keep all tokens",
}

_KINDS = {
    "bool_type": "true or false",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "a string",
}
_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {"bool_type": bool, "float_type": (int, float), "int_type": int}


@dataclass(frozen=True)
class Problem:
    """One thing wrong: the dotted key, what the line says after it, and the kind of mistake in a word."""

    key: str
    text: str
    code: str = "value"


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The model that describes this field's keys, or `None` for a field that is a plain value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def key_problems(model: type[BaseModel], tree: Any, prefix: str = "") -> Iterator[Problem]:
    """Keys that nobody reads: all of them in the engine's section, elsewhere those that nearly spell one that is read."""
    for name, value in tree.items() if isinstance(tree, dict) else ():
        field = model.model_fields.get(str(name))
        if field is None and (problem := _unknown_key(str(name), model, prefix)):
            yield problem
        section = section_model(field.annotation) if field else None
        if section:
            yield from key_problems(section, value, f"{prefix}{name}.")


def _unknown_key(name: str, model: type[BaseModel], prefix: str) -> Problem | None:
    """Why this key may not stay; `None` if it is another reader's."""
    key = f"{prefix}{name}"
    if name in getattr(model, "keys_of_others", ()):
        return None
    if name == "_override_":
        text = "not supported in a section that is read here; write out the keys that should differ"
        return Problem(key, text, "unsupported")
    if prefix == f"{MCORE_KEY}." and name in REMOVED_KEYS:
        return Problem(key, str(REMOVED_KEYS[name]), "removed-key")
    if prefix == f"{MCORE_KEY}." and name in TRAINING_KEYS:
        text = "not supported, NeMo RL builds a model for generation with it; this backend takes the training model as it is"
        return Problem(key, text, "unsupported")
    # A misspelt `defaults` would drop the parent without a word.
    names = [*model.model_fields, "defaults"] if model is Recipe else list(model.model_fields)
    closed = model.model_config.get("extra") == "forbid"
    near = nearest(name, names, cutoff=LIKELY if closed else NEAR_MISS)
    if near:
        return Problem(key, f"unknown key; did you mean {near}?", "unknown-key")
    text = "unknown key; no key of this section is spelled like it"
    return Problem(key, text, "unknown-key") if closed else None


def value_problems(error: ValidationError) -> list[Problem]:
    """Pydantic's findings in this module's words."""
    return [
        Problem(
            detail.get("ctx", {}).get("key") or _dotted(detail["loc"]),
            _say(detail),
            _code(detail),
        )
        for detail in error.errors(include_url=False)
    ]


def _code(detail: ErrorDetails) -> str:
    if detail["loc"] == ("policy", "model_name") and detail["input"] is None:
        return "unset"  # NeMo RL's recipes for several models leave the name to whoever launches them
    return {"unsupported": "unsupported", "model_type": "section", "recipe": "conflict"}.get(detail["type"], "value")


def _dotted(location: Iterable[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def _say(detail: ErrorDetails) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in ("recipe", "unsupported"):
        return detail["msg"]
    if kind == "missing":
        return "missing; expected a value"
    advice = ADVICE.get(str(detail["loc"][-1])) or _advise(kind, value, context)
    return f"{show(value)} {_fault(kind, context, detail['msg'])}" + (f"; {advice}" if advice else "")


def _fault(kind: str, context: dict[str, Any], message: str) -> str:
    """What is wrong with the value, without the value."""
    match kind:
        case "literal_error":
            return f"is not one of {', '.join(_options(context))}"
        case "greater_than":
            return f"is too small; expected more than {context['gt']:g}"
        case "greater_than_equal":
            return f"is too small; expected at least {context['ge']:g}"
        case "less_than_equal":
            return f"is too large; expected at most {context['le']:g}"
    return f"is not {_KINDS[kind]}" if kind in _KINDS else f"is not valid: {message}"


def _advise(kind: str, value: Any, context: dict[str, Any]) -> str | None:
    """The value that was probably meant."""
    if value is None:
        return "leave the key out for its default"
    if kind == "string_type" and isinstance(value, int | float):
        return f"write '{show(value)}' in quotes"
    if not isinstance(value, str):
        return None
    if kind in _PYTHON_TYPES and isinstance(_as_yaml(value), _PYTHON_TYPES[kind]):
        return f"write {value} without quotes"
    options = _options(context) if kind == "literal_error" else ["true", "false"] if kind == "bool_type" else []
    near = nearest(value, options)
    return f"did you mean {near}?" if near else None


def _options(context: dict[str, Any]) -> list[str]:
    """The choices of a literal, which pydantic hands over as prose: `'a', 'b' or 'c'`."""
    return re.findall(r"'([^']*)'", context["expected"])


def _as_yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def show(value: Any) -> str:
    """A value as a recipe would spell it, cut to one line of a bearable length."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
