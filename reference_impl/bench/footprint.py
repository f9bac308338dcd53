"""Memory of a backend that only generates, and the time of a weight update, measured in a process that does nothing else.

`python -m reference_impl.bench.footprint '{"backend": ..., "model": ...}'` is that process; its last line is the result.
"""

import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from reference_impl.bench.results import aligned
from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.generation.interfaces import GenerationInterface
    from reference_impl.models.catalog import Checkpoint

ROUNDS, PROMPT_TOKENS, NEW_TOKENS = 5, 64, 8


@dataclass(frozen=True)
class Footprint:
    """One backend.

    `weight_bytes`
    : All weights as float32, an embedding table that is also the output layer once.

    `held_bytes`, `peak_bytes`
    : Resident memory that loading the model and generating added, at the end and at most. A small model ran before, so that
      code and libraries are not in it, nor is the tokenizer, `tokenizer_bytes`; the KV cache, `cache_bytes`, is.

    `update_seconds`, `copy_seconds`, `check_seconds`, `pack_seconds`
    : Medians of `update_weights`, and beside it, of the same tensors: one copy into others, the search for values that are
      not finite, and packing every matrix once.

    `update_bytes`
    : What the first update added to resident memory while it ran.
    """

    backend: str
    model: str
    weight_bytes: int
    cache_bytes: int
    tokenizer_bytes: int
    held_bytes: int
    peak_bytes: int
    update_seconds: float
    copy_seconds: float
    check_seconds: float
    pack_seconds: float
    update_bytes: int


def measure_apart(backend: str, model: str, overrides: Sequence[str] = ()) -> Footprint:
    """Measure in a fresh process; its failure is a {py:exc}`~reference_impl.config.errors.ConfigError` with its last line."""
    command = [sys.executable, "-m", __spec__.name, json.dumps([backend, model, list(overrides)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["without a word"]
        raise ConfigError(f"{backend}: the process that measures it ended: {words[-1]}")
    return Footprint(**json.loads(done.stdout.splitlines()[-1]))


def table(footprints: Sequence[Footprint]) -> str:
    """Memory as multiples of the float32 weights; times of an update, of a copy, and of the parts of an update."""
    head = ("backend", "held", "peak", "update adds", "update ms", "of a copy", "copy ms", "check ms", "pack ms")
    grid: list[tuple[str, ...]] = [head]
    for each in footprints:
        weights = each.weight_bytes
        grid.append(
            (
                each.backend,
                f"{each.held_bytes / weights:.2f}",
                f"{each.peak_bytes / weights:.2f}",
                f"{each.update_bytes / weights:.2f}",
                f"{each.update_seconds * 1e3:.0f}",
                f"{each.update_seconds / each.copy_seconds:.2f}",
                *(f"{seconds * 1e3:.0f}" for seconds in (each.copy_seconds, each.check_seconds, each.pack_seconds)),
            )
        )
    return "\n".join(aligned(grid, left=(0,)))


def write(footprints: Sequence[Footprint], path: Path) -> None:
    """Write them as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in footprints], indent=2) + "\n", "utf-8")


def read(path: Path) -> list[Footprint]:
    """Read what {py:func}`write` wrote."""
    return [Footprint(**each) for each in json.loads(path.read_text("utf-8"))]


def measure_here(backend_name: str, model: str, overrides: Sequence[str]) -> Footprint:
    """The measurement itself; right only in a process that has done nothing else."""
    import torch

    from reference_impl.bench.systems import Load
    from reference_impl.generation.batch import BatchedDataDict
    from reference_impl.generation.interfaces import GenerationInterface
    from reference_impl.generation.registry import create_backend
    from reference_impl.generation.updates import check_finite
    from reference_impl.models.catalog import find_model
    from reference_impl.platforms.memory import give_back
    from reference_impl.platforms.packed import Packed, can_pack, pack, repack

    def generating(name: str) -> tuple[GenerationInterface, float]:
        load = Load(name, find_model(name).shape, PROMPT_TOKENS, NEW_TOKENS, [1])
        recipe = load.recipe(backend_name, overrides)
        backend = create_backend(recipe, tokenizer=tokenizer)
        backend.prepare_for_generation()
        ids = torch.arange(PROMPT_TOKENS)[None]
        backend.generate(BatchedDataDict(input_ids=ids, input_lengths=torch.tensor([PROMPT_TOKENS])), greedy=True)
        return backend, recipe.policy.generation.mcore_generation_config.buffer_size_gb

    tokenizer = find_model("tiny").read_tokenizer()
    warm, _ = generating("tiny")
    warm.shutdown()
    del warm
    gc.collect()
    bare = resident()
    tokenizer = find_model(model).read_tokenizer()
    give_back()
    before = resident()
    forget_peak()
    backend, cache_gib = generating(model)
    gc.collect()
    held, peak = resident() - before, peak_resident() - before

    checkpoint = find_model(model)
    state = weights_for(backend, checkpoint)
    copies = {name: torch.empty_like(tensor) for name, tensor in state.items()}

    def copy() -> None:
        for name, tensor in state.items():
            copies[name].copy_(tensor)

    packed: dict[str, Packed] = {}

    def pack_all() -> None:
        for name, tensor in state.items():
            if tensor.ndim == 2 and can_pack(tensor):
                if name in packed:
                    repack(packed[name], tensor)
                else:
                    packed[name] = pack(tensor)

    copy()
    gc.collect()
    at_rest = resident()
    forget_peak()
    backend.update_weights(state, epoch=1)
    added = max(peak_resident() - at_rest, 0)
    updates, plain = [], []
    for epoch in range(ROUNDS):
        plain.append(seconds_of(copy))
        updates.append(seconds_of(partial(backend.update_weights, state, epoch=2 + epoch)))
    backend.shutdown()
    pack_all()
    check, packing = (
        statistics.median(seconds_of(work) for _ in range(ROUNDS)) for work in (partial(check_finite, state), pack_all)
    )
    return Footprint(
        backend=backend_name,
        model=model,
        weight_bytes=checkpoint.shape.parameters() * 4,
        cache_bytes=int(cache_gib * 2**30),
        tokenizer_bytes=before - bare,
        held_bytes=held,
        peak_bytes=peak,
        update_seconds=statistics.median(updates),
        copy_seconds=statistics.median(plain),
        check_seconds=check,
        pack_seconds=packing,
        update_bytes=added,
    )


def weights_for(backend: "GenerationInterface", checkpoint: "Checkpoint") -> "dict[str, Tensor]":
    """The checkpoint under the names that the backend takes: Megatron's, or Hugging Face's where it refuses those."""
    from reference_impl.models.llama import megatron_from_hf

    weights = checkpoint.read_weights()
    state = {name: tensor.clone() for name, tensor in megatron_from_hf(weights, checkpoint.shape)}
    try:
        backend.prepare_refit_info({name: (tensor.shape, tensor.dtype) for name, tensor in state.items()})
    except ValueError:
        return {name: tensor.clone() for name, tensor in weights.items()}
    return state


def seconds_of(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def resident() -> int:
    """Bytes of this process in memory."""
    return _status("VmRSS")


def peak_resident() -> int:
    """The most since the process began, or since {py:func}`forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak be counted anew (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match is not None, name
    return int(match[1]) * 1024


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    print(json.dumps(asdict(measure_here(*json.loads(sys.argv[1])))))
