"""Events that no engine tells in earnest: a schedule with mistakes in it, and sequences without any sense.

The tracker and its oracle have to agree on which of them are refused.
"""

from __future__ import annotations

from oracle.schedules import Choices, Engine, Schedule, Take

EVENT_BYTES = 16


def with_mistakes(take: Take) -> Schedule:
    """The schedule of an engine with up to three mistakes: an event lost, told twice, too late, or with a wrong number."""
    events = Engine(take).events
    choose = Choices(take(20))
    for _ in range(1 + choose(3)):
        at = (choose(256) << 8 | choose(256)) % len(events)
        mistake = choose.of(("lost", "twice", "late", "wrong", "wrong", "wrong"))
        if mistake == "lost" and len(events) > 1:
            events.pop(at)
        elif mistake == "twice":
            events.insert(at, events[at])
        elif mistake == "late":
            events.insert(min(len(events), at + 1 + choose(4)), events.pop(at))
        elif mistake == "wrong" and len(events[at]) > 1:
            name, *arguments = events[at]
            which = choose(len(arguments))
            arguments[which] = _wrong(arguments[which], choose)
            events[at] = (name, *arguments)
    return events


def _wrong(argument: object, choose: Choices) -> object:
    if isinstance(argument, list):
        return _wrong_list(list(argument), choose)
    if isinstance(argument, int):
        return argument + choose.of((1, -1, 2, -2))
    return {None: choose(20), "persist": "recompute", "recompute": "offload"}.get(argument, "persits")


def _wrong_list(numbers: list[int], choose: Choices) -> list[int]:
    at = choose(len(numbers)) if numbers else 0
    mistake = choose.of(("number", "number", "dropped", "repeated", "swapped"))
    if mistake == "number" and numbers:
        numbers[at] += choose.of((1, -1, 2, -2))
    elif mistake == "dropped":
        del numbers[at : at + 1]
    elif mistake == "repeated":
        numbers[at:at] = numbers[at : at + 1]
    else:
        numbers.reverse()
    return numbers


def without_sense(take: Take) -> Schedule:
    """Up to 30 events of any kind in any order, over two names and a few positions and slots."""
    events: Schedule = []
    for _ in range(30):
        choose = Choices(take(EVENT_BYTES))
        event = choose.of(KINDS)
        if event == "stop":
            break
        events.append((event, *_arguments(event, choose)))
    return events


# As often as it takes for most sequences to get somewhere.
KINDS = (
    "stop",
    "admit",
    "admit",
    *["forward"] * 6,
    *["sample"] * 4,
    "reuse",
    "reuse",
    "weights_changed",
    "weights_changed",
)
KINDS += ("release", "suspend", "resume", "resume", "evict", "preempt", "finish", "abort", "so_far")


def _arguments(event: str, choose: Choices) -> tuple:
    name = choose(2)
    if event == "admit":
        return name, choose(5)
    if event in ("forward", "reuse"):
        return _rows(event, name, choose)
    if event == "sample":
        return (choose.of(([0], [1], [0, 1], [1, 0], [0, 0], [])),)
    if event == "release":
        return ([choose(6) - choose.one_in(9) for _ in range(choose(3))],)
    if event == "weights_changed":
        return (choose.of((0, 1, 2, 3, 4, True, 1.5, -1)),)
    if event == "suspend":
        return (choose.of(("recompute", "persist", "offload", "persit")),)
    if event in ("finish", "abort", "so_far"):
        return name, choose.of((None, None, 1, 2, 3, 4))
    return () if event == "resume" else (name,)


def _rows(event: str, name: int, choose: Choices) -> tuple:
    names, positions = [], []
    for number in range(1 + choose(2) * (event == "forward")):
        start, count = choose(4), choose.of((1, 2, 3, 0))
        names += [(name + number + choose.one_in(9)) % 2] * count
        positions += range(start, start + count)
    slots = [choose(5) - choose.one_in(50) for _ in names]
    if choose.one_in(6):
        positions = _wrong_list(positions, choose)
    return (names if event == "forward" else name), positions, slots
