"""Reads a file of rollouts, whatever wrote it: our run folder, or JSON lines of SGLang, vLLM, AReaL, Megatron, verl.

The keys of the first whole line tell the shape, and every other line must have it too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_impl.staleness.lines import KINDS
from reference_impl.staleness.readers import areal, megatron, sglang, verl, vllm
from reference_impl.staleness.readers.fields import Entry, Labels, count, identity
from reference_impl.staleness.records import RequestRecord, check, newer_than
from reference_impl.staleness.runs import Run, SequenceRecord, Step, read_run

TEXTS = ("text", "completion", "content")


@dataclass(frozen=True)
class Shape:
    """One system's lines.

    `fields`
    : What tells them, for a reader.

    `paths`
    : Where that lies: one of these is there. `[0]` is the first object of a list.

    `read`
    : Makes a record of a line; takes its name, for want of an id, and what labels stand for.
    """

    system: str
    fields: str
    paths: tuple[str, ...]
    read: Callable[[Entry, int | str, Labels | None], RequestRecord]

    def found_in(self, entry: Entry) -> str | None:
        """The first of the paths that the line has."""
        return next((path for path in self.paths if _at(entry, path)), None)

    def __str__(self) -> str:
        return f"{self.system}'s {self.fields}"


def _everywhere(name: str, *places: str) -> tuple[str, ...]:
    return (name, *(f"{place}.{name}" for place in places))


SHAPES = (
    Shape("SGLang", sglang.FIELD, (sglang.FIELD,), sglang.read),
    Shape(
        "vLLM",
        "weight_versions",
        _everywhere("weight_versions", *(f"{place}[0]" for place in vllm.PLACES)),
        vllm.read,
    ),
    Shape("AReaL", " or ".join(areal.FIELDS), areal.FIELDS, lambda entry, name, _: areal.read(entry, name)),
    Shape(
        "Megatron",
        "policy_epoch",
        _everywhere("policy_epoch", "choices[0]", "choices[0].message"),
        lambda entry, name, _: megatron.read(entry, name),
    ),
    Shape(
        "verl",
        "min_global_steps",
        _everywhere("min_global_steps", *verl.PLACES),
        lambda entry, name, _: verl.read(entry, name),
    ),
)
"""The shapes that are known, besides our own, in the order in which they are tried."""


def read_any(path: str | Path, versions: Labels | None = None) -> Run:
    """Read the rollouts of a run folder, of its `run.jsonl`, or of a file of JSON lines that another system wrote.

    `versions`
    : Which checkpoint's number a label such as `step-12` stands for, where versions are labels (SGLang, vLLM).

    Besides what its system writes, a line may have an id (`id`, `rid`, `request_id` or `index`; without one it is
    called by its place, from 0), the prompt's length (`prompt_length`, or `prompt_tokens` or `input_ids` to count), a
    `reward`, the `text` or that of each of its `tokens`, and the training `step` that consumed it: the number of the
    checkpoint that was trained from, so that a rollout which that checkpoint sampled has staleness 0. A sequence's
    index is its line's place.

    A line that is not whole JSON is counted in `Run.bad_lines` and left out. Raises `ValueError`, in one line with
    file, line and field or token, for an empty file, a shape that is not known, a line of another shape than the
    first, an id that is there twice, epochs that cannot be true (`records.check`), a step older than an epoch, and a
    reward that is not a number.
    """
    path = Path(path)
    if path.is_dir():
        return read_run(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    log: _Log | None = None
    bad_lines = 0
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            bad_lines += bool(line.strip())
            continue
        if log is None and isinstance(entry, dict) and entry.get("kind") in KINDS:
            return read_run(path)
        try:
            log = log or _Log(_shape_of(entry), versions)
            log.add(number, entry)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, {error}") from None
    if log is None:
        what = "no line is whole JSON, expected one object a line" if bad_lines else "the file is empty"
        raise ValueError(f"{path}, line 1: {what}")
    return log.done(bad_lines)


def _shape_of(entry: Any) -> Shape:
    """The shape of a file's first line."""
    keys = _object(entry)
    shape = next((shape for shape in SHAPES if shape.found_in(keys)), None)
    if shape is None:
        known, got = ", ".join(map(str, SHAPES)), ", ".join(map(str, keys)) or "none"
        raise ValueError(f"keys: expected a run folder's line (kind) or one with {known}; got {got}")
    return shape


def _object(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError(f"keys: expected a JSON object, got {entry!r:.60}")
    return entry


def _at(entry: Any, path: str) -> bool:
    """Whether the line has a field at this path. A null counts: the system says there that it does not know."""
    for step in path.split("."):
        name, first, _ = step.partition("[0]")
        if not isinstance(entry, Mapping) or name not in entry:
            return False
        entry = entry[name]
        if first:
            entry = entry[0] if isinstance(entry, list) and entry else None
    return True


class _Log:
    """A file of one shape as far as it has been read. Errors start with the field or the token that is wrong."""

    def __init__(self, shape: Shape, versions: Labels | None) -> None:
        self.shape = shape
        self.versions = versions
        self.sequences: list[SequenceRecord] = []
        self.lines: dict[int | str, int] = {}  # by the request's name
        self.consumed: dict[int, list[int]] = {}  # by the training step

    def add(self, number: int, entry: Any) -> None:
        self._hold_to_shape(_object(entry))
        index = len(self.sequences)
        record = self.shape.read(entry, index, self.versions)
        name = record.request
        if name in self.lines:
            field = (identity(entry) or ("id", name))[0]
            raise ValueError(f"{field}: {name!r} is on line {self.lines[name]} already; a rollout counts once")
        check(record)
        if entry.get("step") is not None:
            step = count(entry["step"], "step")
            if found := newer_than(record, step):
                raise ValueError(f"step: {step} is older than {found}")
            self.consumed.setdefault(step, []).append(index)
        self.lines[name] = number
        self.sequences.append(_sequence(entry, index, record))

    def done(self, bad_lines: int) -> Run:
        return Run(
            # Neither a model's name nor the epoch at the start is in such a log, and neither is made up.
            header={"backend": self.shape.system, "mode": "read from a log"},
            sequences=self.sequences,
            steps=[Step(step, tuple(indices)) for step, indices in sorted(self.consumed.items())],
            bad_lines=bad_lines,
        )

    def _hold_to_shape(self, entry: Entry) -> None:
        if self.shape.found_in(entry):
            return
        for other in SHAPES:
            if found := other.found_in(entry):
                raise ValueError(f"{found}: expected {self.shape}, found {other.system}'s {found}")
        if entry.get("kind") in KINDS:
            raise ValueError(f"kind: expected {self.shape}, found a run folder's line")
        got = ", ".join(map(str, entry)) or "none"
        raise ValueError(f"{self.shape.paths[0]}: missing; expected {self.shape}, got the keys {got}")


def _sequence(entry: Entry, index: int, record: RequestRecord) -> SequenceRecord:
    prompt_length = record.sampled[0][0] if record.sampled else record.length
    tokens = entry.get("tokens")
    texts = [token for token in tokens if isinstance(token, str)] if isinstance(tokens, list) else []
    return SequenceRecord(
        index=index,
        prompt=_text(entry, "prompt"),
        prompt_length=prompt_length,
        tokens=texts if len(texts) == record.length - prompt_length else [],
        text=_text(entry, *TEXTS),
        record=record,
        reward=_reward(entry),
    )


def _text(entry: Entry, *names: str) -> str:
    """The first of the fields that is a text, on the line or on its one completion."""
    choice = _first(entry.get("choices"))
    places = (entry, _first(entry.get("outputs")), choice, choice.get("message"))
    found = (place[name] for place in places if isinstance(place, Mapping) for name in names if name in place)
    return next((text for text in found if isinstance(text, str)), "")


def _first(value: object) -> Entry:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], Mapping) else {}


def _reward(entry: Entry) -> float | None:
    name = "reward" if "reward" in entry else "rewards"
    reward = entry.get(name)
    if isinstance(reward, list) and len(reward) == 1:  # a batch of one, as AReaL has it
        reward = reward[0]
    if reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise ValueError(f"{name}: expected a finite number, got {reward!r:.60}")
    return float(reward)
