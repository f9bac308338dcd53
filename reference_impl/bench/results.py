"""What a comparison found, with the machine and the versions it was found on: as JSON, and as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference_impl.bench.comparison import Row
from reference_impl.bench.machine import Limits, Work

HEADS = ("batch", "backend", "tokens/s", "spread", "first s", "ms/token", "ratio", "limit", "of limit", "bandwidth")


@dataclass(frozen=True)
class Results:
    """One run of `genref bench`.

    `machine`
    : Processor, cores and threads, and {py:class}`~reference_impl.bench.machine.Limits` as measured in this run.

    `left_out`
    : Systems that were asked for and could not run here, each with the reason.
    """

    date: str
    machine: dict[str, Any]
    versions: dict[str, str]
    model: str
    dtype: str
    device: str
    prompt_tokens: int
    new_tokens: int
    rounds: int
    limits: Limits
    work: Work
    left_out: dict[str, str]
    rows: list[Row]

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read what {py:meth}`write` wrote."""
        tree = json.loads(path.read_text("utf-8"))
        parts = {"limits": Limits(**tree["limits"]), "work": Work(**tree["work"])}
        return cls(**(tree | parts | {"rows": [Row(**row) for row in tree["rows"]]}))

    def write(self, path: Path) -> None:
        """Write everything as JSON; `rows` is the table, unrounded."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")

    def row(self, backend: str, batch: int) -> Row:
        """The row of a system at a batch size."""
        return next(row for row in self.rows if (row.backend, row.batch) == (backend, batch))

    def text(self) -> str:
        """The table under the conditions it was measured in."""
        return "\n".join([*self.conditions(), "", *aligned([HEADS, *map(cells, self.rows)])])

    def conditions(self) -> list[str]:
        """What was run on what, and the machine's limits, a line each."""
        machine, limits, work = self.machine, self.limits, self.work
        gemm = ", ".join(f"{name} {rate:.0f}" for name, rate in limits.gemm_gflop_s.items())
        cache = work.kv_bytes_per_token * (self.prompt_tokens + self.new_tokens / 2) / 1e6
        lengths = f"{self.prompt_tokens} tokens in, {self.new_tokens} out, greedy, {self.rounds} rounds"
        return [
            f"{self.model}, {self.dtype} on {self.device}: {lengths}",
            f"{self.date}, {machine.get('gpu', machine['processor'])}, {machine['vectors']}, {machine['threads']} threads",
            f"reads {limits.read_gb_s:.1f} GB/s, matrix products {gemm} GFLOP/s",
            f"a step reads {work.weight_bytes / 1e6:.0f} MB of weights, and {cache:.1f} MB of cache for each request",
        ]


def cells(row: Row) -> list[str]:
    """A row as the table shows it, under {py:data}`HEADS`."""
    ratio = row.ratio_to_huggingface
    return [
        str(row.batch),
        row.backend,
        f"{row.decode_tokens_per_second:.1f}",
        f"{row.spread:.0%}",
        f"{row.first_token_seconds:.3f}",
        f"{row.token_seconds * 1e3:.1f}",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{min(row.bandwidth_limit, row.compute_limit):.0f}",
        f"{row.limit_share:.0%}",
        f"{row.bandwidth_share:.0%}",
    ]


def aligned(grid: Sequence[Sequence[str]], left: Sequence[int] = (1,)) -> list[str]:
    """Lines of columns that are as wide as their widest cell; numbers to the right, columns in `left` to the left."""
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in grid
    ]
