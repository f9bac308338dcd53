"""One generation run of the command line: prompts through a backend, every sequence into the run folder."""

import contextlib
import datetime
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from reference_impl.cli.quiet import quiet_signals
from reference_impl.config.errors import ConfigError
from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.generation.interfaces import GenerationInterface, Progress
from reference_impl.models.checkpoints import parameters_of, perturbed
from reference_impl.staleness.runs import RUN_FILE, RunWriter, SequenceRecord


@dataclass
class Updates:
    """Weight updates in the course of a run: one whenever `every` more tokens were sampled, `most` in all (None: no limit).

    The weights that were loaded first are moved by noise of `strength` times their deviation, other noise each time.
    """

    every: int
    most: int | None = None
    strength: float = 0.1
    made: int = field(default=0, init=False)
    _loaded: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def make_if_due(self, sampled_tokens: int, backend: GenerationInterface, writer: RunWriter) -> None:
        """Change the weights, and say so in the run folder, if `sampled_tokens` of the whole run are enough for it.

        What is written down is the count when the change was made: in coordinator mode the engine runs on meanwhile.
        """
        if self.made == self.most or sampled_tokens < (self.made + 1) * self.every:
            return
        self._loaded = self._loaded or parameters_of(backend.model)
        self.made += 1
        backend.update_weights(perturbed(self._loaded, self.made, self.strength), epoch=backend.epoch + 1)
        writer.update(
            epoch=backend.epoch,
            after_tokens=backend.sampled_tokens,
            what=f"each matrix moved by noise of {self.strength:g} times its deviation, seed {self.made}",
        )


def open_run(command: str, folder: Path | None) -> RunWriter:
    """Start writing to `folder`, or to a new folder `runs/COMMAND-DATE-TIME`."""
    return RunWriter(open_folder(command, folder))


def open_folder(command: str, folder: Path | None) -> Path:
    """`folder`, or a new folder `runs/COMMAND-DATE-TIME`: it is there, and can be written to."""
    try:
        folder = folder or _new_folder(command)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).open("a").close()
    except OSError as error:
        raise ConfigError(f"run folder {error.filename}: cannot be written ({error.strerror})") from error
    return folder


def _new_folder(command: str) -> Path:
    """Made here and not only named: another run may start within the same second."""
    name = f"{command}-{timestamp()}"
    Path("runs").mkdir(exist_ok=True)
    for copy in itertools.count(1):
        folder = Path("runs") / (name if copy == 1 else f"{name}-{copy}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is no last number")


def timestamp() -> str:
    """The local time to the second, as a part of a file's name."""
    return datetime.datetime.now().strftime("%Y%m%d-%H%M%S")


@contextlib.contextmanager
def interrupt_held() -> Iterator[threading.Event]:
    """In this block the first Ctrl-C only sets the event, so that no line is lost and no process is left half-started.

    The second one raises `KeyboardInterrupt`, wherever it falls.
    """
    pressed = threading.Event()

    def hold(number: int, frame: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    quiet_signals()
    before = signal.signal(signal.SIGINT, hold)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def generate_run(
    backend: GenerationInterface,
    prompts: Sequence[tuple[str, list[int]]],
    writer: RunWriter,
    *,
    greedy: bool,
    updates: Updates | None,
    finished: Callable[[SequenceRecord], None],
    stop: threading.Event,
) -> list[SequenceRecord]:
    """Generate for (text, token ids) prompts, writing each sequence when it is done; returns them in the prompts' order.

    Once `stop` is set, the sequences under way are written as far as they have come and `KeyboardInterrupt` is raised.
    """
    ids = [prompt for _, prompt in prompts]
    data = BatchedDataDict(
        input_ids=right_padded(ids, 0, torch.int64), input_lengths=torch.tensor([len(prompt) for prompt in ids])
    )
    records: list[SequenceRecord] = []

    def keep(index: int, output: BatchedDataDict) -> None:
        record = to_record(index, prompts[index], output, backend.tokenizer)
        writer.sequence(record)
        records.append(record)
        finished(record)

    total = backend.config.max_new_tokens * len(ids)
    # disable=None: a terminal gets the bar, a file or a pipe does not.
    with tqdm(total=total, unit="tok", desc="generating", leave=False, disable=None, file=sys.stderr) as bar:
        for event in backend.stream(data, greedy):
            if not isinstance(event, Progress):
                keep(*event)
                continue
            if stop.is_set():  # here every sequence that has finished is written, and the others are under way
                break
            bar.update(event.sampled_tokens - bar.n)
            if updates:
                updates.make_if_due(event.sampled_tokens, backend, writer)
        else:
            return sorted(records, key=lambda record: record.index)
    for index, output in backend.unfinished():
        keep(index, output)
    raise KeyboardInterrupt


def to_record(index: int, prompt: tuple[str, list[int]], output: BatchedDataDict, tokenizer: Any) -> SequenceRecord:
    """One output row as a line of the run file."""
    text, prompt_ids = prompt
    start, end = len(prompt_ids), int(output["unpadded_sequence_lengths"][0])
    token_ids = output["output_ids"][0, start:end].tolist()
    record, upstream = output["staleness"][0], output["upstream_staleness"][0]
    return SequenceRecord(
        index=index,
        prompt=text,
        prompt_length=start,
        prompt_token_ids=prompt_ids,
        token_ids=token_ids,
        tokens=[tokenizer.decode([token]) for token in token_ids],
        text=tokenizer.decode(token_ids, skip_special_tokens=True),
        logprobs=[round(value, 6) for value in output["logprobs"][0, start:end].tolist()],
        # The engine numbers its requests over all batches; a run folder numbers its sequences.
        record=replace(record, request=index) if record else None,
        upstream=replace(upstream, request=index) if upstream else None,
        truncated=bool(output["truncated"][0]),
        error=output["errors"][0],
    )
