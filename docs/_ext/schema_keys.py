"""The recipe's keys as pages speak of them: found by any unique ending, with type and default in a reader's words."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reference_impl.config.checking import section_model, show
from reference_impl.config.errors import ConfigError
from reference_impl.config.loader import load_recipe
from reference_impl.config.schema import Follows, Recipe


class UnknownNameError(ValueError):
    """A name on a page that stands for nothing, or for several things; the message says so in one line."""


@dataclass(frozen=True)
class Key:
    """One key: its full dotted name, what it says about itself, and its default and type as a page shows them.

    `is_section` tells a section from a plain value; a section has no default.
    """

    name: str
    description: str
    type: str
    default: str
    is_section: bool


def keys_of(model: type[BaseModel]) -> dict[str, Key]:
    """Every key of a schema by its full name, in the schema's order."""
    whole = model.model_json_schema()
    return {key.name: key for key in _keys(model, whole, whole.get("$defs", {}), "")}


def _keys(model: type[BaseModel], schema: dict[str, Any], parts: dict[str, Any], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        full, about = f"{prefix}{name}", field.description or ""
        section = section_model(field.annotation)
        if section is None:
            yield Key(full, about, in_words(schema["properties"][name]), default_of(field), is_section=False)
        else:
            yield Key(full, about, "section", "", is_section=True)
            yield from _keys(section, parts[section.__name__], parts, f"{full}.")


def in_words(schema: dict[str, Any]) -> str:
    """The type that a JSON schema describes: `integer, more than 0`, `one of none, local`, `list of strings, or null`."""
    if "anyOf" in schema:
        named = [in_words(part) for part in schema["anyOf"]]
        return f"{', or '.join(named[:-1])}, or {named[-1]}"
    if "enum" in schema:
        return f"one of {', '.join(show(choice).strip(chr(39)) for choice in schema['enum'])}"
    match schema.get("type"):
        case "array":
            kind, *bounds = in_words(schema["items"]).split(", ")
            return f"list of {kind}s{''.join(f', each {bound}' for bound in bounds)}"
        case "boolean":
            return "true or false"
    bounds = [f"{words} {schema[name]:g}" for name, words in _BOUNDS.items() if name in schema]
    return ", ".join([schema.get("type", "anything"), *bounds])


_BOUNDS = {
    "exclusiveMinimum": "more than",
    "minimum": "at least",
    "exclusiveMaximum": "less than",
    "maximum": "at most",
}


def default_of(field: FieldInfo) -> str:
    """A default as a recipe would spell it; where it follows another key, the interpolation that a recipe would write."""
    for mark in field.metadata:
        if isinstance(mark, Follows):
            return mark.expression
    return show(field.default).strip("'")


KEYS = keys_of(Recipe)
"""Every key of a recipe, sections included."""


def find(name: str, keys: Mapping[str, Key] | None = None) -> Key:
    """The key whose dotted name ends in `name`; raises {class}`UnknownNameError` unless there is exactly one."""
    keys = KEYS if keys is None else keys
    if name in keys:
        return keys[name]
    found = [key for full, key in keys.items() if full.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownNameError(f"ambiguous key {name!r}: {' or '.join(key.name for key in found)}")
    raise UnknownNameError(f"unknown key {name!r}{did_you_mean(name, endings(keys))}")


def endings(keys: Mapping[str, Key]) -> list[str]:
    """The last part of each key, and each key in full."""
    return [*dict.fromkeys(full.rpartition(".")[2] for full in keys), *keys]


def did_you_mean(name: str, candidates: list[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, if any is near."""
    near = difflib.get_close_matches(name, candidates, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def split_value(text: str) -> tuple[str, str | None]:
    """Part `key: value` or `key=value` into both; a key alone has the value `None`."""
    for mark in (": ", "="):
        name, found, value = text.partition(mark)
        if found:
            return name.strip(), value.strip()
    return text, None


def refuse_bad_value(key: Key, value: str) -> None:
    """Raise {class}`UnknownNameError` with the loader's own words where a recipe could not hold this value."""
    try:
        load_recipe(None, [f"++{key.name}={value}"])
    except ConfigError as error:
        raise UnknownNameError(str(error).removeprefix("command line: ")) from None
