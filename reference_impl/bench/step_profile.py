"""Where the time of a decode step goes: PyTorch's operations by what they are for, and the host's work between them."""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from reference_impl.bench.results import aligned
from reference_impl.bench.timing import WARM
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface

STEPS = 8
"""Steps that are timed, and then as many under the profiler."""

PRODUCTS, ATTENTION, COPIES, SAMPLING, REST, HOST = (
    "matrix products",
    "attention",
    "cache writes, gathers, copies",
    "sampling",
    "norms, rotary, activation, views",
    "host: scheduling, tracking, Python",
)
_PRODUCTS = {"linear", "matmul", "mm", "addmm", "addmm_", "mkldnn_linear", "_linear_pointwise"}
_ATTENTION = {"bmm", "baddbmm", "softmax", "_softmax"}
_COPIES = {
    "index",
    "index_select",
    "index_put_",
    "_index_put_impl_",
    "index_copy_",
    "index_fill_",
    "gather",
    "scatter_",
}
_COPIES |= {"copy_", "cat", "clone", "contiguous", "_to_copy", "to", "embedding"}
_SAMPLING = {
    "argmax",
    "topk",
    "sort",
    "multinomial",
    "exponential_",
    "log_softmax",
    "_log_softmax",
    "logsumexp",
    "cumsum",
}


@dataclass(frozen=True)
class Part:
    """One line: seconds and operations a step, and the operations that take most of it."""

    name: str
    seconds: float
    calls: float
    mostly: list[str]


@dataclass(frozen=True)
class StepProfile:
    """A mean decode step. `step_seconds` is the median without the profiler, `profiled_seconds` what the parts add up to."""

    backend: str
    model: str
    batch: int
    prompt_tokens: int
    step_seconds: float
    profiled_seconds: float
    parts: list[Part]

    @classmethod
    def read(cls, path: Path) -> "StepProfile":
        """Read what {py:meth}`write` wrote."""
        tree = json.loads(path.read_text("utf-8"))
        return cls(**(tree | {"parts": [Part(**part) for part in tree["parts"]]}))

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")

    def text(self) -> str:
        """The table."""
        grid = [("part", "ms", "share", "calls", "mostly")]
        for part in self.parts:
            share = part.seconds / self.profiled_seconds
            calls = f"{part.calls:.0f}" if part.calls else "-"
            grid.append((part.name, f"{part.seconds * 1e3:.2f}", f"{share:.1%}", calls, ", ".join(part.mostly)))
        step = f"{self.backend}, {self.model}: a decode step of {self.batch} after {self.prompt_tokens} tokens"
        takes = f"{self.step_seconds * 1e3:.1f} ms, {self.profiled_seconds * 1e3:.1f} ms under the profiler"
        return "\n".join([f"{step}: {takes}", "", *aligned(grid, left=(0, 4))])


def profile_step(
    backend: GenerationInterface, name: str, model: str, vocab_size: int, batch: int, prompt_tokens: int
) -> StepProfile:
    """Decode greedily and profile some steps; the backend's recipe has to allow {py:data}`NEW_TOKENS`."""
    from torch._C._profiler import _ExperimentalConfig

    cuda = torch.cuda.is_available()
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    # Megatron's engine runs on a thread of its own.
    settings: dict[str, Any] = {
        "activities": activities,
        "record_shapes": True,
        "experimental_config": _ExperimentalConfig(profile_all_threads=True),
    }
    with torch.profiler.profile(**settings):
        torch.ones(1)  # the profiler's own first start is slow
    ids = torch.randint(vocab_size, (batch, prompt_tokens), generator=torch.Generator().manual_seed(0))
    data = BatchedDataDict(input_ids=ids, input_lengths=torch.full((batch,), prompt_tokens))
    stream = backend.stream(data, greedy=True)
    before = backend.sampled_tokens
    while backend.sampled_tokens - before < WARM * batch:
        next(stream)
    plain = [_timed_step(backend, stream, batch) for _ in range(STEPS)]
    with torch.profiler.profile(**settings) as profiler:
        profiled = [_timed_step(backend, stream, batch) for _ in range(STEPS)]
    for _ in stream:
        pass
    events = [
        (event.name, event.input_shapes, (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6)
        for event in profiler.events()
    ]
    seconds = sum(profiled) / STEPS
    parts = parts_of(events, vocab_size, STEPS, seconds)
    return StepProfile(name, model, batch, prompt_tokens, statistics.median(plain), seconds, parts)


NEW_TOKENS = WARM + 2 * STEPS + 4
"""Tokens of each request of a profile."""


def _timed_step(backend: GenerationInterface, stream: Iterable[object], batch: int) -> float:
    """Seconds until there is a token more for each request."""
    wanted, start = backend.sampled_tokens + batch, time.perf_counter()
    for _ in stream:
        if backend.sampled_tokens >= wanted:
            break
    return time.perf_counter() - start


def parts_of(
    events: Iterable[tuple[str, Sequence[Sequence[int]], float]], vocab_size: int, steps: int, step_seconds: float
) -> list[Part]:
    """Add up operations (name, shapes of the inputs, seconds without those it calls); the host has what is left of a step."""
    found: dict[str, dict[str, list[float]]] = {
        part: defaultdict(list) for part in (PRODUCTS, ATTENTION, COPIES, SAMPLING, REST)
    }
    for name, shapes, seconds in events:
        if "::" in name:  # else a range that somebody has named, not an operation
            found[part_for(name, shapes, vocab_size)][name.rpartition("::")[2]].append(seconds)
    parts = []
    for part, operations in found.items():
        total = sum(map(sum, operations.values())) / steps
        calls = sum(map(len, operations.values())) / steps
        largest = sorted(operations, key=lambda name: -sum(operations[name]))[:2]
        parts.append(Part(part, total, calls, [name for name in largest if sum(operations[name]) > 0]))
    left = step_seconds - sum(part.seconds for part in parts)
    return [*parts, Part(HOST, max(left, 0.0), 0, [])]


def part_for(name: str, shapes: Sequence[Sequence[int]], vocab_size: int) -> str:
    """What an operation is for, by its name; and if it takes one number for each word of the vocabulary, it samples."""
    operation = name.rpartition("::")[2]
    if operation in _PRODUCTS:
        return PRODUCTS
    if operation in _SAMPLING or (shapes and len(shapes[0]) and shapes[0][-1] == vocab_size):
        return SAMPLING
    if operation in _ATTENTION or "attention" in operation or "scaled_dot_product" in operation:
        return ATTENTION
    return COPIES if operation in _COPIES else REST
