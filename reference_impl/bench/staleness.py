"""What staleness costs: tracking within a decode step, a training step's statistics, and the report about them.

Tracking is timed within the very steps that it is part of, so that its share does not depend on how fast the machine is
today. The rollouts are made up, with a fixed seed: three policy epochs each, and a KV cache that follows.
"""

import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface, Progress
from reference_impl.generation.megatron.stamping import Stamping
from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.report.page import write_html
from reference_impl.staleness.rollouts import Rollouts
from reference_impl.staleness.runs import RUN_FILE, RunWriter, SequenceRecord, read_run
from reference_impl.staleness.tracker import StalenessTracker

PROMPT_TOKENS, NEW_TOKENS, WARM = 64, 64, 4
STAMPING = ("_admitted", "_forward", "sampled", "_updated", "_processed")
"""What of {py:class}`~reference_impl.generation.megatron.stamping.Stamping` runs while requests do."""

TRACKER = ("admit", "cached", "reuse", "forward", "sample", "preempt", "evict", "finish")
"""What the other backends' engines ask of {py:class}`~reference_impl.staleness.tracker.StalenessTracker` meanwhile."""


@dataclass
class Clock:
    """Seconds spent in tracking since the clock was made."""

    seconds: float = 0.0


@contextmanager
def tracking_clock(backend: str) -> Iterator[Clock]:
    """Time the tracking of every backend of this name that is built in this block."""
    owner, hooks = (Stamping, STAMPING) if backend == "megatron" else (StalenessTracker, TRACKER)
    clock, originals = Clock(), {name: getattr(owner, name) for name in hooks}

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                clock.seconds += time.perf_counter() - start

        return call

    for name, method in originals.items():
        setattr(owner, name, timed(method))
    try:
        yield clock
    finally:
        for name, method in originals.items():
            setattr(owner, name, method)


@dataclass
class Tracking:
    """Seconds of each decode step, and of the tracking within it."""

    batch: int
    steps: list[float] = field(default_factory=list)
    tracking: list[float] = field(default_factory=list)

    def line(self) -> str:
        """One line: medians, and the share of all steps' time."""
        step, tracking = (statistics.median(values) for values in (self.steps, self.tracking))
        share = sum(self.tracking) / sum(self.steps)
        return (
            f"tracking, batch {self.batch}: {tracking * 1e6:.0f} us of a {step * 1e3:.1f} ms decode step, "
            f"{share:.3%} of {len(self.steps)} steps"
        )


def time_tracking(backend: GenerationInterface, clock: Clock, vocab_size: int, batch: int) -> Tracking:
    """Decode `NEW_TOKENS` greedily for `batch` random prompts; prefill and the first steps are not counted."""
    ids = torch.randint(vocab_size, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    data = BatchedDataDict(input_ids=ids, input_lengths=torch.full((batch,), PROMPT_TOKENS))
    result, tokens, start, before = Tracking(batch), 0, 0.0, 0.0
    for event in backend.stream(data, greedy=True):
        if not isinstance(event, Progress) or event.sampled_tokens == tokens:
            continue
        now, tokens = time.perf_counter(), event.sampled_tokens
        if tokens > WARM * batch:
            result.steps.append(now - start)
            result.tracking.append(clock.seconds - before)
        start, before = now, clock.seconds
    return result


def made_up(rollouts: int, tokens: int) -> list[RequestRecord]:
    """`rollouts` records of `tokens` tokens each in the mean, all of them sampled but a prompt of 10."""
    random, prompt, records = np.random.default_rng(0), 10, []
    for name in range(rollouts):
        length = prompt + int(random.integers(tokens // 2, tokens * 3 // 2 + 1))
        first = int(random.integers(0, 5))
        changes = np.sort(random.integers(prompt + 1, length, 2)).tolist()
        epochs = [(0, first), *((at, first + number) for number, at in enumerate(changes, 1))]
        kv = [(0, first), *((at - 1, epoch) for at, epoch in epochs[1:])]
        records.append(
            RequestRecord(
                request=name,
                policy_epoch=EpochRuns.from_boundaries(epochs, length),
                kv_cache_epoch=EpochRuns.from_boundaries(kv, length),
                oldest_attended_kv_epoch=EpochRuns.from_boundaries([(0, None), (prompt, first)], length),
                sampled=((prompt, length),),
                admission_epoch=first,
                completion_epoch=epochs[-1][1],
            )
        )
    return records


def time_statistics(records: list[RequestRecord], rounds: int) -> str:
    """One line: `consume` and every metric, `rounds` times, and the memory that they take."""
    start = time.perf_counter()
    waiting = Rollouts(records)
    added = time.perf_counter() - start
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        values = measure(consume(8, waiting))
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    measure(consume(8, waiting))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    columns = sum(array.nbytes for array in vars(waiting.columns()).values())
    times = times[1:]  # the first one also loads code
    return (
        f"consume and {len(values)} metrics, {len(records):,} rollouts, {values['consumed_tokens']:,.0f} tokens: "
        f"{statistics.median(times) * 1e3:.1f} ms ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f}), columns "
        f"{columns / 2**20:.1f} MiB, peak {peak / 2**20:.1f} MiB; adding a rollout as it finishes "
        f"{added / len(records) * 1e6:.0f} us"
    )


def time_report(records: list[RequestRecord], rounds: int) -> str:
    """One line: the page about these rollouts from a run in memory, and `genref report` on a run folder, start included."""
    pages, commands = [], []
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name) / "run", Path(name) / "report.html"
        _write_run(folder, records)
        run = read_run(folder)
        typed = ["from reference_impl.cli.main import run; run()", "report", str(folder), "-o", str(page)]
        for _ in range(rounds):
            start = time.perf_counter()
            write_html(run, page)
            pages.append(time.perf_counter() - start)
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", *typed], check=True, stdout=subprocess.DEVNULL)
            commands.append(time.perf_counter() - start)
        size, lines = page.stat().st_size, (folder / RUN_FILE).stat().st_size
    return (
        f"report, {len(records):,} rollouts: page {statistics.median(pages):.2f} s, {size / 1e6:.2f} MB; "
        f"genref report on {lines / 2**20:.1f} MiB of lines {statistics.median(commands):.2f} s"
    )


def _write_run(folder: Path, records: list[RequestRecord]) -> None:
    """A run folder in which every sampled token is the same letter, and one training step took all."""
    with RunWriter(folder) as writer:
        writer.header(model="made up", backend="none", mode="bench", epoch=0)
        for number, record in enumerate(records):
            prompt, count = record.sampled[0][0], record.num_sampled
            sequence = SequenceRecord(number, prompt_length=prompt, prompt_token_ids=[7] * prompt, record=record)
            sequence.token_ids, sequence.tokens, sequence.logprobs = [7] * count, ["a"] * count, [-0.5] * count
            writer.sequence(sequence)
        writer.step(step=8, consumed=range(len(records)))
