"""Synchronous against asynchronous training of one recipe, in turn within one run, and what each part of a step takes."""

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from reference_impl.config.schema import Recipe
from reference_impl.rl.sweep import Outcome, sweep

WAYS = {
    "synchronous": ("grpo.async_grpo.enabled=false", "policy.generation.colocated.enabled=true"),
    "asynchronous, one process": ("grpo.async_grpo.enabled=true", "policy.generation.colocated.enabled=true"),
    "asynchronous, two processes": ("grpo.async_grpo.enabled=true", "policy.generation.colocated.enabled=false"),
}
"""Overrides that make a recipe one or the other; the first is what the others are compared with."""

PARTS = ("generation", "waiting", "training", "refit")


@dataclass(frozen=True)
class Timed:
    """One way of training over all rounds.

    `steps_per_second`
    : Of each round, without its first step, in which engines are built.

    `shares`
    : Of a step's time, by part: `generation` or, where it goes on meanwhile, `waiting` for it; `training`; `refit`.

    `peak_gib`
    : Most memory that its processes held together.
    """

    name: str
    steps_per_second: list[float]
    shares: dict[str, float]
    peak_gib: float

    @property
    def median(self) -> float:
        """Steps each second, the median round."""
        return statistics.median(self.steps_per_second)


def settings(recipe_changes: Sequence[str], delay: float, steps: int) -> list[list[str]]:
    """The overrides of each way."""
    common = [
        *recipe_changes,
        f"env.delay_seconds={delay:g}",
        f"grpo.max_num_steps={steps}",
        "checkpointing.enabled=false",
    ]
    return [[*common, "grpo.demonstration_steps=0", *changes] for changes in WAYS.values()]


def measure(made: Sequence[Recipe], rounds: int) -> Iterator[tuple[str, Outcome]]:
    """Every way in turn, `rounds` times; each run in a process of its own."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            yield from zip(WAYS, sweep(made, [{}] * len(made), Path(folder)), strict=True)


def timed(way: str, outcomes: Sequence[Outcome]) -> Timed:
    """What a way's rounds come to."""
    total = sum(outcome.seconds() for outcome in outcomes)
    return Timed(
        way,
        [outcome.steps_per_second for outcome in outcomes],
        {part: sum(outcome.seconds(part) for outcome in outcomes) / total for part in PARTS},
        max(outcome.peak_gib for outcome in outcomes),
    )


def table(found: Sequence[Timed]) -> str:
    """A line for each way."""
    lines = [
        f"{'':28}{'steps/s':>8}{'spread':>8}{'ratio':>7}" + "".join(f"{part:>12}" for part in PARTS) + f"{'GiB':>7}"
    ]
    for each in found:
        spread = (max(each.steps_per_second) - min(each.steps_per_second)) / each.median
        shares = "".join(f"{each.shares[part]:12.1%}" for part in PARTS)
        ratio = each.median / found[0].median
        lines.append(f"{each.name:28}{each.median:8.2f}{spread:8.0%}{ratio:7.2f}{shares}{each.peak_gib:7.2f}")
    return "\n".join(lines)


def write(found: Sequence[Timed], path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", "utf-8")
