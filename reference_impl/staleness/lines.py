"""The shape of a run folder's lines: which fields each kind has, and one clear message for a line of another shape.

Fields that are not listed are left alone, so that a newer writer's file still reads.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

KINDS = ("run", "update", "sequence")

type Check = tuple[str, Callable[[Any], bool]]  # what is expected, in words, and whether a value is that


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list_of(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(test, value))


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


TEXT: Check = ("a string", _is_str)
COUNT: Check = ("an integer of 0 or more", _is_count)
IDS: Check = ("a list of token ids", _list_of(_is_count))
TEXTS: Check = ("a list of strings", _list_of(_is_str))
NUMBERS: Check = ("a list of numbers", _list_of(_is_number))
FLAG: Check = ("true or false", lambda value: isinstance(value, bool))
# What is inside an epoch list is EpochRuns' to judge: it knows the sequence's length and names the boundary.
EPOCHS: Check = ("a list of [start, epoch], or null", lambda value: value is None or isinstance(value, list))
REASON: Check = ("a string, or null", lambda value: value is None or isinstance(value, str))

HEADER: dict[str, Check] = {"model": TEXT, "backend": TEXT, "mode": TEXT, "epoch": COUNT}
UPDATE: dict[str, Check] = {"epoch": COUNT, "after_tokens": COUNT, "what": TEXT}
SEQUENCE: dict[str, Check] = {
    "index": COUNT,
    "prompt": TEXT,
    "prompt_length": COUNT,
    "prompt_token_ids": IDS,
    "token_ids": IDS,
    "tokens": TEXTS,
    "text": TEXT,
    "logprobs": NUMBERS,
    "policy_epoch": EPOCHS,
    "kv_cache_epoch": EPOCHS,
    "num_evictions": COUNT,
    "truncated": FLAG,
    "error": REASON,
}


def kind_of(entry: Any) -> str:
    """The line's `kind`. Raises `ValueError` that starts with the field."""
    if not isinstance(entry, dict):
        raise ValueError(f"kind: expected a JSON object with a kind, got {entry!r:.60}")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r:.60}{_nearest(kind, KINDS)}")
    return str(kind)


def checked_fields(entry: Mapping[str, Any], shape: Mapping[str, Check]) -> dict[str, Any]:
    """The line without its `kind`, once every field of `shape` is there. Raises `ValueError` naming the first not."""
    for name, (expected, test) in shape.items():
        if name not in entry:
            raise ValueError(f"{name}: missing, expected {expected}{_nearest(name, entry.keys() - shape.keys())}")
        if not test(entry[name]):
            raise ValueError(f"{name}: expected {expected}, got {entry[name]!r:.60}")
    return {name: value for name, value in entry.items() if name != "kind"}


def one_length(entry: Mapping[str, Any], name: str, length: int) -> None:
    """Raise `ValueError` unless the list `name` has `length` entries."""
    if len(entry[name]) != length:
        raise ValueError(f"{name}: expected {length} entries, got {len(entry[name])}")


def _nearest(name: object, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), sorted(names), 1)
    return f"; nearest: {close[0]!r}" if close else ""
