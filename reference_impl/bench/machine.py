"""What the machine can do at most, measured: bytes read per second and multiplications per second; and what decoding needs."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from reference_impl.models.shapes import ModelShape
from reference_impl.platforms.packed import can_pack, pack, product

READS, PRODUCTS, SIDE = 5, 3, 2048


@dataclass(frozen=True)
class Work:
    """What one decode step takes at least, whatever the engine.

    `weight_bytes`
    : Read once a step, however many requests decode: all weights, an embedding table that is not the output layer left out,
      since a step reads only a row of it for each request.

    `flop_per_token`
    : Two for each weight of a matrix that a token is multiplied with. Attention is left out.

    `kv_bytes_per_token`
    : Keys and values of one cached token, which each later step of its request reads; no limit here counts them.
    """

    weight_bytes: int
    flop_per_token: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, shape: ModelShape, value_bytes: int) -> "Work":
        """The work of a model whose weights and cache have numbers of `value_bytes` bytes."""
        read = shape.parameters() - (0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size)
        norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
        heads = shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
        return cls(read * value_bytes, 2 * (read - norms), 2 * heads * value_bytes)


@dataclass(frozen=True)
class Limits:
    """Measured limits: gigabytes (10^9) read per second, and GFLOP/s of matrix products by precision."""

    read_gb_s: float
    gemm_gflop_s: dict[str, float]

    def by_bandwidth(self, batch: int, work: Work) -> float:
        """Tokens per second if a step of `batch` requests took as long as reading the weights once."""
        return batch * self.read_gb_s * 1e9 / work.weight_bytes

    def by_compute(self, dtype: str, work: Work) -> float:
        """Tokens per second, at any batch size, if a step took as long as its matrix products."""
        return self.gemm_gflop_s[dtype] * 1e9 / work.flop_per_token

    def best(self, other: "Limits") -> "Limits":
        """The higher of two measurements: a limit is what the machine reaches when nothing disturbs it."""
        gemm = {name: max(rate, other.gemm_gflop_s[name]) for name, rate in self.gemm_gflop_s.items()}
        return Limits(max(self.read_gb_s, other.read_gb_s), gemm)


def measure_limits(weight_bytes: int, device: torch.device) -> Limits:
    """Read a tensor as large as the weights, and multiply square matrices; the best of a few tries each."""
    return Limits(_read_gb_s(weight_bytes, device), _gemm_gflop_s(device))


def _read_gb_s(weight_bytes: int, device: torch.device) -> float:
    """By sums that run on all threads; which of them is the fastest differs from machine to machine."""
    numbers = torch.ones(weight_bytes // 4, device=device)
    fastest = min(_seconds(read, READS, device) for read in (numbers.sum, numbers.norm))
    return numbers.numel() * 4 / fastest / 1e9


def _gemm_gflop_s(device: torch.device) -> dict[str, float]:
    """float32, on a CPU by whichever of BLAS and oneDNN is faster here; on CUDA bfloat16 too."""
    found = {}
    for dtype in (torch.float32, torch.bfloat16) if device.type == "cuda" else (torch.float32,):
        left, right = (torch.randn(SIDE, SIDE, device=device, dtype=dtype) for _ in range(2))
        products = [partial(torch.mm, left, right)]
        if device.type == "cpu" and can_pack(right):
            products.append(partial(product, left, pack(right)))
        fastest = min(_seconds(product, PRODUCTS, device) for product in products)
        found[str(dtype).removeprefix("torch.")] = 2 * SIDE**3 / fastest / 1e9
    return found


def _seconds(work: Callable[[], object], tries: int, device: torch.device) -> float:
    """The shortest of some tries, after one that is not counted."""
    times = []
    for _ in range(tries + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def describe(device: torch.device) -> dict[str, object]:
    """Processor, cores, threads, memory and vector instructions, for whoever reads the numbers later."""
    described: dict[str, object] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }
    if device.type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
    return described


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
