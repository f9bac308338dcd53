"""One key, several values: a plan for each, as a table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.config.schema import MCORE_KEY, MCoreGenerationConfig
from reference_impl.planning.cache import GIB
from reference_impl.planning.plan import Plan
from reference_impl.planning.text import fits

HEADS = ("blocks", "max_requests", "at once", "memory", "limited by")


@dataclass(frozen=True)
class Sweep:
    """A key of a recipe, with the values to try in the spelling of the command line."""

    key: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """The key's last part."""
        return self.key.rpartition(".")[2]

    @classmethod
    def parse(cls, text: str) -> "Sweep":
        """Read `KEY=V1,V2,...`; a name without dots is a key of `mcore_generation_config`.

        Raises `ConfigError` for a key that is not there and for missing values.
        """
        key, equals, rest = text.partition("=")
        values = tuple(value.strip() for value in rest.split(","))
        if not equals or not all(values):
            raise ConfigError(f"--sweep: {text!r}; expected KEY=V1,V2,V3")
        if "." in key:
            return cls(key, values)
        known = MCoreGenerationConfig.model_fields
        if key not in known:
            near = nearest(key, known)
            raise ConfigError(f"--sweep: {key}: unknown key{f'; did you mean {near}?' if near else ''}")
        return cls(f"{MCORE_KEY}.{key}", values)

    def plans(self, plan: Callable[[str], Plan]) -> list[Plan]:
        """A plan for each value; `plan` makes one from an override."""
        return [plan(f"{self.key}={value}") for value in self.values]


def table(sweep: Sweep, plans: Sequence[Plan], gpu_memory: float | None = None) -> str:
    """A line for each value, within 80 columns for usual keys and values; `gpu_memory` (GiB) marks what fits."""
    grid = [[sweep.name, *HEADS], *rows(sweep, plans)]
    if gpu_memory is not None:
        fit = ["yes" if fits(plan, gpu_memory) else "no" for plan in plans]
        marks = [f"fits {gpu_memory:g} GiB", *fit]
        grid = [[*row, mark] for row, mark in zip(grid, marks, strict=True)]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    return "\n".join("  ".join(map(_aligned, row, widths, range(len(row)))).rstrip() for row in grid)


def rows(sweep: Sweep, plans: Sequence[Plan]) -> list[list[str]]:
    """The value, blocks of the buffer, requests allowed and at once, memory, and the limiting keys of each plan."""
    return [
        [
            value,
            str(plan.cache.total_blocks),
            str(plan.cache.max_requests),
            str(plan.concurrency.at_once),
            f"{plan.memory.total / GIB:.2f} GiB",
            ", ".join(plan.concurrency.limited_by),
        ]
        for value, plan in zip(sweep.values, plans, strict=True)
    ]


def _aligned(cell: str, width: int, column: int) -> str:
    """Numbers to the right, the limiting keys and what follows to the left."""
    return cell.ljust(width) if column >= len(HEADS) else cell.rjust(width)
