"""A tracker's events as plain JSON objects, in the order in which they happened: for figures, tests and bug reports.

{py:func}`follow` writes down what a tracker is told; {py:func}`replay` tells it to another one, which then makes the same
records.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.tracker import StalenessTracker

ARGUMENTS = {
    "weights_changed": ("epoch",),
    "suspend": ("mode",),
    "resume": (),
    "release": ("slots",),
    "admit": ("request", "prompt_length"),
    "reuse": ("request", "positions", "slots"),
    "forward": ("requests", "positions", "slots"),
    "sample": ("requests",),
    "preempt": ("request",),
    "evict": ("request",),
    "finish": ("request", "length"),
    "abort": ("request", "length"),
}
"""The tracker's methods that are events, and what each is called with."""


def follow(tracker: StalenessTracker, tell: Callable[[dict[str, Any]], Any]) -> None:
    """From now on, hand every event that `tracker` accepts to `tell`: `{"event": name, argument: value, ...}`."""
    for name in ARGUMENTS:
        setattr(tracker, name, functools.partial(_told, getattr(tracker, name), name, tell))


def _told(method: Callable[..., Any], name: str, tell: Callable[[dict[str, Any]], Any], *args: Any, **more: Any) -> Any:
    result = method(*args, **more)
    given = dict(zip(ARGUMENTS[name], args, strict=False)) | more
    tell({"event": name, **{key: _plain(value) for key, value in given.items() if value is not None}})
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return [int(item) if isinstance(item, np.integer) else item for item in value]
    return int(value) if isinstance(value, np.integer) else value


def replay(events: Iterable[Mapping[str, Any]], tracker: StalenessTracker) -> list[RequestRecord]:
    """Tell `tracker` the events that `follow` wrote down; the records of the requests that ended, in that order.

    Raises `ValueError` for an event of no known name, and whatever the tracker raises.
    """
    records = []
    for number, event in enumerate(events):
        given = dict(event)
        name = given.pop("event", None)
        if name not in ARGUMENTS:
            raise ValueError(f"event {number}: expected one of {', '.join(ARGUMENTS)}, got {name!r}")
        result = getattr(tracker, name)(**given)
        if name in ("finish", "abort"):
            records.append(result)
    return records
