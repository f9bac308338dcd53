"""The shape of a run folder's lines: which fields each kind has, and one clear message for a line of another shape.

Fields that are not listed are left alone, so that a newer writer's file still reads.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from reference_impl.staleness.records import STATUSES

KINDS = ("run", "update", "sequence", "step")

type Check = tuple[str, Callable[[Any], bool]]  # what is expected, in words, and whether a value is that


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# These lists hold an entry a token, so no Python function is called for each: sets of types, and `min`, are fast.
def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int} and min(value, default=0) >= 0


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {int, float}


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and set(map(type, value)) <= {str}


def _are_spans(value: Any) -> bool:
    return isinstance(value, list) and all(_are_counts(span) and len(span) == 2 for span in value)


def _are_named_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_finite, value.values()))


def _or_null(check: Check) -> Check:
    expected, test = check
    return f"{expected}, or null", lambda value: value is None or test(value)


TEXT: Check = ("a string", lambda value: isinstance(value, str))
COUNT: Check = ("an integer of 0 or more", _is_count)
IDS: Check = ("a list of token ids", _are_counts)
INDICES: Check = ("a list of sequence indices", _are_counts)
TEXTS: Check = ("a list of strings", _are_texts)
NUMBERS: Check = ("a list of numbers", _are_numbers)
FLAG: Check = ("true or false", lambda value: isinstance(value, bool))
# What is inside an epoch list is EpochRuns' to judge: it knows the sequence's length and names the boundary.
EPOCH_LIST: Check = _or_null(("a list of [start, epoch]", lambda value: isinstance(value, list)))

HEADER: dict[str, Check] = {"model": TEXT, "backend": TEXT, "mode": TEXT, "epoch": COUNT}
UPDATE: dict[str, Check] = {"epoch": COUNT, "after_tokens": COUNT, "what": TEXT}
STEP: dict[str, Check] = {"step": COUNT, "consumed": INDICES, "dropped": INDICES}
SEQUENCE: dict[str, Check] = {
    "index": COUNT,
    "prompt": TEXT,
    "prompt_length": COUNT,
    "prompt_token_ids": IDS,
    "token_ids": IDS,
    "tokens": TEXTS,
    "text": TEXT,
    "logprobs": NUMBERS,
    "policy_epoch": EPOCH_LIST,
    "kv_cache_epoch": EPOCH_LIST,
    "num_evictions": _or_null(COUNT),
    "truncated": FLAG,
    "error": _or_null(TEXT),
}
# A run folder of an older version has none of these; what is not there is not known.
SEQUENCE_MORE: dict[str, Check] = {
    "reward": _or_null(("a finite number", _is_finite)),
    "upstream": _or_null(("an object with policy_epoch and kv_cache_epoch", lambda value: isinstance(value, dict))),
}
STEP_MORE: dict[str, Check] = {"metrics": _or_null(("an object of finite numbers", _are_named_numbers))}
RECORD: dict[str, Check] = {
    "policy_epoch": EPOCH_LIST,
    "kv_cache_epoch": EPOCH_LIST,
    "oldest_attended_kv_epoch": EPOCH_LIST,
    "sampled": _or_null(("a list of [start, stop]", _are_spans)),
    "num_evictions": _or_null(COUNT),
    "num_preemptions": _or_null(COUNT),
    "num_recomputes": _or_null(COUNT),
    "prefix_cached_tokens": _or_null(COUNT),
    "admission_epoch": _or_null(COUNT),
    "completion_epoch": _or_null(COUNT),
    "status": _or_null((f"one of {', '.join(STATUSES)}", lambda value: value in STATUSES)),
}


def kind_of(entry: Any) -> str:
    """The line's `kind`. Raises `ValueError` that starts with the field."""
    if not isinstance(entry, dict):
        raise ValueError(f"kind: expected a JSON object with a kind, got {entry!r:.60}")
    kind = entry.get("kind")
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r:.60}{_nearest(kind, KINDS)}")
    return str(kind)


def check_fields(entry: Mapping[str, Any], shape: Mapping[str, Check], *, required: bool = True) -> None:
    """Hold the line to `shape`, absent fields too if they are `required`. Raises `ValueError` naming the first field."""
    for name, (expected, test) in shape.items():
        if name not in entry:
            if required:
                raise ValueError(f"{name}: missing, expected {expected}{_nearest(name, entry.keys() - shape.keys())}")
        elif not test(entry[name]):
            raise ValueError(f"{name}: expected {expected}, got {entry[name]!r:.60}")


def one_length(entry: Mapping[str, Any], name: str, length: int) -> None:
    """Raise `ValueError` unless the list `name` has `length` entries."""
    if len(entry[name]) != length:
        raise ValueError(f"{name}: expected {length} entries, got {len(entry[name])}")


def _nearest(name: object, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), sorted(names), 1)
    return f"; nearest: {close[0]!r}" if close else ""
