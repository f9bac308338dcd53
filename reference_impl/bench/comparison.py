"""Systems side by side: they decode in turn within each round, so that a machine that drifts is the same for all of them."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reference_impl.bench.machine import Limits, Work
from reference_impl.bench.systems import PEER, Load, System
from reference_impl.bench.timing import Timeline

type Rounds = dict[str, list[Timeline]]


@dataclass(frozen=True)
class Row:
    """One system at one batch size: medians over the rounds.

    `spread`
    : The range of its decode speeds over their median.

    `token_seconds`
    : A sequence's time from one token to the next.

    `ratio_to_huggingface`
    : The median over rounds of its speed over that of `transformers.generate` in the same round; `None` without it.

    `bandwidth_limit`, `compute_limit`
    : {py:meth}`~reference_impl.bench.machine.Limits.by_bandwidth` and
      {py:meth}`~reference_impl.bench.machine.Limits.by_compute`, tokens per second.

    `bandwidth_share`, `limit_share`
    : The decode speed over the first of them, and over the lower of both.
    """

    backend: str
    batch: int
    decode_tokens_per_second: float
    spread: float
    first_token_seconds: float
    token_seconds: float
    ratio_to_huggingface: float | None
    bandwidth_limit: float
    bandwidth_share: float
    compute_limit: float
    limit_share: float


def alternate(
    systems: Sequence[System], load: Load, batch: int, rounds: int, after_turn: Callable[[], object] = lambda: None
) -> Rounds:
    """The counted rounds of each system, after one that is not counted; each round begins with another one.

    All systems of a round get the same random prompts.
    """
    draw = random.Random(batch)
    found: Rounds = {system.name: [] for system in systems}
    for number in range(rounds + 1):
        prompts = [[draw.randrange(load.shape.vocab_size) for _ in range(load.prompt_tokens)] for _ in range(batch)]
        for system in rotated(systems, number):
            timeline = system.decode(prompts, load.new_tokens)
            if number:
                found[system.name].append(timeline)
            after_turn()
    return found


def rotated[T](items: Sequence[T], number: int) -> list[T]:
    """The items from the `number`th on, and then those before it."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


def rows_of(
    batch: int, rounds: Mapping[str, Sequence[Timeline]], limits: Limits, dtype: str, work: Work
) -> Iterator[Row]:
    """A row for each system, in the order of `rounds`."""
    bandwidth, compute = limits.by_bandwidth(batch, work), limits.by_compute(dtype, work)
    peer = [timeline.decode_tokens_per_second for timeline in rounds.get(PEER, ())]
    for name, timelines in rounds.items():
        speeds = [timeline.decode_tokens_per_second for timeline in timelines]
        speed = statistics.median(speeds)
        yield Row(
            backend=name,
            batch=batch,
            decode_tokens_per_second=speed,
            spread=(max(speeds) - min(speeds)) / speed,
            first_token_seconds=statistics.median(timeline.first_token_seconds for timeline in timelines),
            token_seconds=statistics.median(timeline.token_seconds for timeline in timelines),
            ratio_to_huggingface=(
                statistics.median(ours / theirs for ours, theirs in zip(speeds, peer, strict=True)) if peer else None
            ),
            bandwidth_limit=bandwidth,
            bandwidth_share=speed / bandwidth,
            compute_limit=compute,
            limit_share=speed / min(bandwidth, compute),
        )
