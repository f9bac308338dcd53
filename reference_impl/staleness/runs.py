"""The run folder: what a generation run leaves on disk, and how it is read back.

A folder holds `run.jsonl`, one JSON object a line: first the run's header, then weight updates and finished
sequences in the order in which they happened. A line is on disk as soon as it is written, so an interrupted run
keeps everything that was finished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.lines import HEADER, SEQUENCE, UPDATE, checked_fields, kind_of, one_length

RUN_FILE = "run.jsonl"


@dataclass
class SequenceRecord:
    """One sequence of a run: its prompt, what was generated, and the epochs of both.

    `index`, `prompt`, `prompt_length`, `prompt_token_ids`
    : The sequence's number in the run and its prompt, as text, tokens counted, and token ids `[prompt_length]`.

    `token_ids`, `tokens`, `logprobs`, `text`
    : The generated tokens `[generated]`: their ids, the text of each, their log-probabilities (natural logarithm),
      and the whole answer's text.

    `policy_epoch`, `kv_cache_epoch`
    : `[[start index, epoch], ...]` over the whole sequence, prompt then generated; `None` when nothing was generated
      and nothing stamped.

    `num_evictions`, `truncated`, `error`
    : How often the engine evicted the request, whether it ended at the length limit, and, for a sequence that failed
      or was interrupted, why. A failed sequence has no tokens, so it joins no staleness statistic; an interrupted one
      has those it had come to, and they were sampled like any others.
    """

    index: int
    prompt: str
    prompt_length: int = 0
    prompt_token_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    policy_epoch: list[list[int]] | None = None
    kv_cache_epoch: list[list[int]] | None = None
    num_evictions: int = 0
    truncated: bool = False
    error: str | None = None

    @property
    def length(self) -> int:
        """Tokens in all, prompt then generated."""
        return self.prompt_length + len(self.token_ids)

    @property
    def has_epochs(self) -> bool:
        """Whether there are epochs to ask for; a sequence without any has no generated tokens either."""
        return self.policy_epoch is not None and self.kv_cache_epoch is not None

    @property
    def policy(self) -> EpochRuns:
        """Policy epochs of the whole sequence, `[length]`. Raises `ValueError` when there are none."""
        return self.runs_of("policy_epoch")

    @property
    def kv(self) -> EpochRuns:
        """KV-cache epochs of the whole sequence, `[length]`. Raises `ValueError` when there are none."""
        return self.runs_of("kv_cache_epoch")

    @property
    def generated_policy(self) -> EpochRuns:
        """Policy epochs of the generated tokens, `[generated]`, counted from 0."""
        return self.policy.slice(self.prompt_length, self.length)

    @property
    def generated_kv(self) -> EpochRuns:
        """KV-cache epochs of the generated tokens, `[generated]`, counted from 0."""
        return self.kv.slice(self.prompt_length, self.length)

    def runs_of(self, name: str) -> EpochRuns:
        """`policy` or `kv`, by the field's name."""
        boundaries = getattr(self, name)
        if boundaries is None:
            raise ValueError(f"sequence {self.index} has no {name}: {self.error or 'none was recorded'}")
        return EpochRuns.from_boundaries(boundaries, self.length)


@dataclass
class Run:
    """A run as read back: the header's and the updates' fields as written, and the sequences ordered by `index`.

    `bad_lines` counts lines that are not whole JSON, as an interruption leaves them.
    """

    header: dict[str, Any]
    updates: list[dict[str, Any]] = field(default_factory=list)
    sequences: list[SequenceRecord] = field(default_factory=list)
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
        self.write({"kind": "sequence", **asdict(record)})

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line as it is. What JSON has no form for is written as its list, its number or its `repr`."""
        # Pure ASCII: a lone surrogate from half a character is kept, and no cut falls inside a character.
        self._file.write(json.dumps(dict(line), default=_plain) + "\n")
        self._file.flush()

    def close(self) -> None:
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
    in turn, the last is read. Raises `ValueError`, in one line with file, line and field, for a missing file, a run
    without any sequence, and a line of another shape.
    """
    path = Path(path)
    path = path / RUN_FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    run: Run | None = None
    bad_lines = 0
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:  # JSONDecodeError, and UnicodeDecodeError where a foreign writer was cut mid-character
            bad_lines += bool(line.strip())
            continue
        try:
            if kind_of(entry) == "run":
                run, bad_lines = Run(checked_fields(entry, HEADER)), 0
            elif run is None:
                raise ValueError(f"kind: expected 'run' on the first line, got {entry['kind']!r}")
            else:
                _add(run, entry)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}, {error}") from None
    if run is None:
        raise ValueError(f"{path}, line 1, kind: no line of kind 'run'; the file holds no run")
    if not run.sequences:
        raise ValueError(f"{path}, line {len(lines)}, kind: no line of kind 'sequence'; the run is empty")
    run.sequences.sort(key=lambda record: record.index)
    run.bad_lines = bad_lines
    return run


def _add(run: Run, entry: dict[str, Any]) -> None:
    """Add an update or a sequence to `run`; `ValueError` starts with the field that is wrong."""
    if entry["kind"] == "update":
        run.updates.append(checked_fields(entry, UPDATE))
        return
    checked = checked_fields(entry, SEQUENCE)
    record = SequenceRecord(**{item.name: checked[item.name] for item in fields(SequenceRecord)})
    one_length(checked, "prompt_token_ids", record.prompt_length)
    one_length(checked, "tokens", len(record.token_ids))
    one_length(checked, "logprobs", len(record.token_ids))
    for name in ("policy_epoch", "kv_cache_epoch"):
        if checked[name] is None and not record.token_ids:
            continue  # refused, not begun, or a prompt that fills the context: nothing was stamped
        try:
            record.runs_of(name)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    run.sequences.append(record)
