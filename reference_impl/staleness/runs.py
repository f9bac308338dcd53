"""The run folder: what a generation run leaves on disk, and how it is read back.

A folder holds `run.jsonl`, one JSON object a line: first the run's header, then weight updates, finished sequences and
the training steps that consumed them, in the order in which they happened. A line is on disk as soon as it is written,
so an interrupted run keeps everything that was finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.lines import (
    HEADER,
    RECORD,
    SEQUENCE,
    SEQUENCE_MORE,
    STEP,
    STEP_MORE,
    UPDATE,
    check_fields,
    kind_of,
    one_length,
)
from reference_impl.staleness.record_json import from_json, to_json
from reference_impl.staleness.records import EPOCHS, RequestRecord, check, newer_than

RUN_FILE = "run.jsonl"


@dataclass
class SequenceRecord:
    """One sequence of a run: its prompt, what was generated, and what its engine knows of the tokens.

    `index`, `prompt`, `prompt_length`, `prompt_token_ids`
    : The sequence's number in the run and its prompt, as text, tokens counted, and token ids `[prompt_length]`.

    `token_ids`, `tokens`, `logprobs`, `text`
    : The generated tokens `[generated]`: their ids, the text of each, their log-probabilities (natural logarithm),
      and the whole answer's text. A log without text leaves them empty.

    `record`
    : Epochs and counts of the whole sequence, prompt then generated; `None` when nothing is known of them.

    `upstream`
    : The same with the engine's own stamps, for comparison, or `None`. A run folder keeps their two epochs.

    `reward`
    : What the environment gave for the sequence, or `None`.

    `truncated`, `error`
    : Whether it ended at the length limit, and, for a sequence that failed or was interrupted, why. A failed sequence
      has no tokens, so it joins no staleness statistic; an interrupted one has those it had come to, and they were
      sampled like any others.
    """

    index: int
    prompt: str = ""
    prompt_length: int = 0
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    record: RequestRecord | None = None
    upstream: RequestRecord | None = None
    reward: float | None = None
    truncated: bool = False
    error: str | None = None

    @property
    def length(self) -> int:
        """Tokens in all, prompt then generated."""
        return self.record.length if self.record else self.prompt_length + len(self.token_ids)

    @property
    def num_generated(self) -> int:
        """Tokens that the engine sampled."""
        return self.record.num_sampled if self.record else len(self.token_ids)

    @property
    def status(self) -> str:
        """How the request ended: as its record says, or else as its error and its tokens do."""
        if self.record:
            return self.record.status
        return "finished" if self.error is None else "aborted" if self.token_ids else "failed"

    @property
    def has_epochs(self) -> bool:
        """Whether there are epochs to ask for."""
        return self.record is not None

    @property
    def policy(self) -> EpochRuns:
        """Policy epochs of the whole sequence, `[length]`. Raises `ValueError` when there are none."""
        return self._known().policy_epoch

    @property
    def kv(self) -> EpochRuns:
        """KV-cache epochs of the whole sequence, `[length]`. Raises `ValueError` when there are none."""
        return self._known().kv_cache_epoch

    @property
    def generated_policy(self) -> EpochRuns:
        """Policy epochs of the generated tokens, `[generated]`, counted from 0."""
        return self._known().of_sampled("policy_epoch")

    @property
    def generated_kv(self) -> EpochRuns:
        """KV-cache epochs of the generated tokens, `[generated]`, counted from 0."""
        return self._known().of_sampled("kv_cache_epoch")

    @property
    def generated_attended(self) -> EpochRuns:
        """Oldest attended KV epochs of the generated tokens, `[generated]`, counted from 0."""
        return self._known().of_sampled("oldest_attended_kv_epoch")

    def rollout(self) -> RequestRecord:
        """What training takes of the sequence, named by its index: its record, or tokens without a stamp."""
        if self.record is None:
            where = {"length": self.length, "prompt_length": self.prompt_length}
            return from_json({"status": self.status}, request=self.index, **where)
        return self.record if self.record.request == self.index else replace(self.record, request=self.index)

    def to_line(self) -> dict[str, Any]:
        """The sequence as its line in the run folder: one object, the record's fields beside its own."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        record = to_json(self.record) if self.record else dict.fromkeys(RECORD)
        stamps = to_json(self.upstream) if self.upstream else None
        upstream = {name: stamps[name] for name in ("policy_epoch", "kv_cache_epoch")} if stamps else None
        return {**plain, **record, "upstream": upstream, **{name: getattr(self, name) for name in _ENDING}}

    def _known(self) -> RequestRecord:
        if self.record is None:
            raise ValueError(f"sequence {self.index} has no epochs: {self.error or 'none was recorded'}")
        return self.record


# In a line the record's fields, and upstream's, stand between these.
_ENDING = ("reward", "truncated", "error")
_PLAIN = tuple(item.name for item in fields(SequenceRecord) if item.name not in ("record", "upstream", *_ENDING))


@dataclass(frozen=True)
class Step:
    """One training step: which sequences it consumed, and which it was offered but left out, by their indices.

    `metrics`
    : What the trainer measured, by name: its reward and loss, the seconds that parts of it took. Empty where it says nothing.
    """

    step: int
    consumed: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Run:
    """A run as read back: the header's and the updates' fields as written, and the sequences ordered by `index`.

    `steps` is empty for a run that was not trained on. `bad_lines` counts lines that are not whole JSON, as an
    interruption leaves them.
    """

    header: dict[str, Any]
    updates: list[dict[str, Any]] = field(default_factory=list)
    sequences: list[SequenceRecord] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    bad_lines: int = 0


class RunWriter:
    """Appends a run's lines to `folder/run.jsonl`, each flushed at once; the folder is created.

    A context manager, though a run that is killed before the end of the block loses no line. It judges nothing:
    whatever was generated is written, and `read_run` says what is wrong with it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / RUN_FILE
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut = _ends_within_line(self.path)
        self._file = self.path.open("a", encoding="ascii", newline="\n")
        if cut:  # an interrupted run was here before: its last line must not swallow our first
            self._file.write("\n")

    def header(self, *, model: str, backend: str, mode: str, epoch: int, **more: Any) -> None:
        """Start the run; `epoch` is that of the weights loaded first."""
        self.write({"kind": "run", "model": model, "backend": backend, "mode": mode, "epoch": epoch, **more})

    def update(self, *, epoch: int, after_tokens: int, what: str, **more: Any) -> None:
        """Record a weight update: the new epoch, the tokens generated before it in the whole run, and its cause."""
        self.write({"kind": "update", "epoch": epoch, "after_tokens": after_tokens, "what": what, **more})

    def sequence(self, record: SequenceRecord) -> None:
        """Record a finished or a failed sequence."""
        self.write({"kind": "sequence", **record.to_line()})

    def step(self, *, step: int, consumed: Iterable[int], dropped: Iterable[int] = (), **more: Any) -> None:
        """Record a training step: the indices of the sequences it was trained on, and of those it left out."""
        self.write({"kind": "step", "step": step, "consumed": [*consumed], "dropped": [*dropped], **more})

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line as it is. What JSON has no form for is written as its list, its number or its `repr`."""
        # Pure ASCII: a lone surrogate from half a character is kept, and no cut falls inside a character.
        self._file.write(json.dumps(dict(line), default=_plain) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; what was written is on disk already."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(value: object) -> object:
    """A JSON form of `value`: arrays and array scalars by their `tolist`, all else by `repr`."""
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else repr(value)


def _ends_within_line(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read_run(path: str | Path) -> Run:
    """Read `run.jsonl`, given as the file or as its folder.

    A line that is not whole JSON is counted in `Run.bad_lines` and left out. Where runs were written to one folder
    in turn, the last is read. Raises `ValueError`, in one line with file, line and field or token, for a missing file,
    a run without any sequence, a line of another shape, epochs that cannot be true (`records.check`), an index that is
    there twice, and a training step that is older than what it consumed.
    """
    path = Path(path)
    path = path / RUN_FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    run: _Reading | None = None
    bad_lines = 0
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:  # JSONDecodeError, and UnicodeDecodeError where a foreign writer was cut mid-character
            bad_lines += bool(line.strip())
            continue
        try:
            if kind_of(entry) == "run":
                check_fields(entry, HEADER)
                run, bad_lines = _Reading(_own(entry)), 0
            elif run is None:
                raise ValueError(f"kind: expected 'run' on the first line, got {entry['kind']!r}")
            else:
                run.add(number, entry)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, {error}") from None
    if run is None:
        raise ValueError(f"{path}, line 1, kind: no line of kind 'run'; the file holds no run")
    if not run.sequences:
        raise ValueError(f"{path}, line {len(lines)}, kind: no line of kind 'sequence'; the run is empty")
    for number, step in run.steps.items():
        try:
            run.check_step(step, whole=not bad_lines)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, {error}") from None
    return run.done(bad_lines)


class _Reading:
    """A run as far as it has been read. Errors start with the field or the token that is wrong."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.updates: list[dict[str, Any]] = []
        self.sequences: dict[int, SequenceRecord] = {}
        self.steps: dict[int, Step] = {}  # by the number of the line

    def add(self, number: int, entry: dict[str, Any]) -> None:
        if entry["kind"] == "update":
            check_fields(entry, UPDATE)
            self.updates.append(_own(entry))
        elif entry["kind"] == "sequence":
            sequence = _sequence(entry)
            if sequence.index in self.sequences:
                raise ValueError(f"index: sequence {sequence.index} is there already; a sequence has one line")
            self.sequences[sequence.index] = sequence
        else:
            check_fields(entry, STEP)
            check_fields(entry, STEP_MORE, required=False)
            step = Step(entry["step"], tuple(entry["consumed"]), tuple(entry["dropped"]), entry.get("metrics") or {})
            if any(step.step == other.step for other in self.steps.values()):
                raise ValueError(f"step: step {step.step} is there already; a training step has one line")
            self.steps[number] = step

    def check_step(self, step: Step, whole: bool) -> None:
        """Hold a step to the sequences that it names; where lines were lost (not `whole`), some may be missing."""
        seen: set[int] = set()
        for name, indices in (("consumed", step.consumed), ("dropped", step.dropped)):
            for index in indices:
                if index in seen:
                    raise ValueError(f"{name}: sequence {index} is named twice")
                if index in self.sequences:
                    record = self.sequences[index].record
                    if record and (found := newer_than(record, step.step)):
                        raise ValueError(f"step: {step.step} is older than {found} of sequence {index}")
                elif whole:
                    raise ValueError(f"{name}: no sequence {index} in the run")
                seen.add(index)

    def done(self, bad_lines: int) -> Run:
        here = self.sequences.keys()
        return Run(
            header=self.header,
            updates=self.updates,
            sequences=[self.sequences[index] for index in sorted(here)],
            steps=[
                replace(
                    step,
                    consumed=tuple(index for index in step.consumed if index in here),
                    dropped=tuple(index for index in step.dropped if index in here),
                )
                for step in sorted(self.steps.values(), key=lambda step: step.step)
            ],
            bad_lines=bad_lines,
        )


def _own(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "kind"}


def _sequence(entry: dict[str, Any]) -> SequenceRecord:
    check_fields(entry, SEQUENCE)
    check_fields(entry, SEQUENCE_MORE, required=False)
    sequence = SequenceRecord(**{name: entry[name] for name in (*_PLAIN, *_ENDING) if name in entry})
    one_length(entry, "prompt_token_ids", sequence.prompt_length)
    one_length(entry, "tokens", len(sequence.token_ids))
    one_length(entry, "logprobs", len(sequence.token_ids))
    where: dict[str, Any] = {
        "request": sequence.index,
        "length": sequence.length,
        "prompt_length": sequence.prompt_length,
    }
    if entry.get("upstream") is not None:
        try:
            sequence.upstream = from_json(entry["upstream"], **where)
        except ValueError as error:
            raise ValueError(f"upstream: {error}") from None
    if any(entry.get(name) is not None for name in ("status", *EPOCHS)):
        sequence.record = from_json({**entry, "status": entry.get("status") or sequence.status}, **where)
        check(sequence.record)
    return sequence
