"""Synchronous GRPO on one shared model: prepare, generate, finish, consume, train, then the next epoch.

Every token of a step is sampled by the weights of that step, so its staleness is 0. The engine reads the parameters that
training changes; no weight is sent anywhere.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reference_impl.generation.distribution import Rule
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.rl.advantages import group_advantages
from reference_impl.rl.environments import Environment
from reference_impl.rl.loss import LossSettings
from reference_impl.rl.policy import Batch, train_step
from reference_impl.rl.rollouts import Rollout, collect
from reference_impl.staleness.consumption import Consumption, consume
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.rollouts import Rollouts


@dataclass(frozen=True)
class Plan:
    """What a run is made of: `prompts` episodes a step, each played `group_size` times, in `context` tokens at most."""

    prompts: int
    group_size: int
    steps: int
    context: int
    normalize: bool = True
    leave_one_out: bool = False
    loss: LossSettings = field(default_factory=LossSettings)


@dataclass(frozen=True)
class StepDone:
    """One training step: what it was made of, and its metrics."""

    step: int
    rollouts: list[Rollout]
    consumption: Consumption
    metrics: dict[str, float]


def train(
    backend: GenerationInterface,
    model: Any,
    optimizer: torch.optim.Optimizer,
    make_environment: Callable[[], Environment],
    plan: Plan,
    rule: Rule,
    first_step: int = 0,
) -> Iterator[StepDone]:
    """Run `plan.steps` steps from `first_step`, whose number is the epoch of the weights that they sample with.

    `backend` shares `model`, and `rule` is what it samples by. A step of which every rollout failed trains nothing, and has
    no staleness to report; the epoch goes on all the same.
    """
    environments = [make_environment() for _ in range(plan.prompts * plan.group_size)]
    backend.update_weights(None, epoch=first_step)  # whatever the engine read of the model before, it reads again
    for step in range(first_step, first_step + plan.steps):
        times = [time.perf_counter()]
        backend.prepare_for_generation()
        episodes = range(step * plan.prompts, (step + 1) * plan.prompts)
        rollouts = collect(backend, environments, episodes, plan.group_size, plan.context)
        backend.finish_generation()
        times.append(time.perf_counter())
        consumption = consume(step, taken_from(rollouts))
        metrics = {"reward": mean_reward(rollouts)} | measure(consumption)
        if len(consumption.rollouts):
            metrics |= train_step(model, optimizer, batch_of(rollouts, step, plan), plan.loss, rule)
        times.append(time.perf_counter())
        backend.update_weights(None, epoch=step + 1)
        times.append(time.perf_counter())
        parts = ("generation", "training", "refit")
        metrics |= {f"{part}_seconds": b - a for part, a, b in zip(parts, times, times[1:], strict=False)}
        yield StepDone(step, rollouts, consumption, metrics)


def taken_from(rollouts: list[Rollout]) -> Rollouts:
    """The records of all rollouts that reached the engine, with their rewards."""
    offered = Rollouts()
    for rollout in rollouts:
        if (record := rollout.record) is not None:
            offered.add(record, rollout.reward)
    return offered


def mean_reward(rollouts: list[Rollout]) -> float:
    """Over the rollouts that have one; NaN where none has."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return sum(rewards) / len(rewards) if rewards else float("nan")


def batch_of(rollouts: list[Rollout], step: int, plan: Plan) -> Batch:
    """What training step `step` reads of rollouts that lie group by group; those that failed count for nothing."""
    rewards = np.array([np.nan if rollout.reward is None else rollout.reward for rollout in rollouts])
    groups = rewards.reshape(-1, plan.group_size)
    advantages = group_advantages(groups, normalize=plan.normalize, leave_one_out=plan.leave_one_out)
    size = len(rollouts), max(len(rollout.tokens) for rollout in rollouts)
    ids, staleness = (np.zeros(size, np.int64) for _ in range(2))
    counts, generation = np.zeros(size, bool), np.zeros(size, np.float32)
    for row, rollout in enumerate(rollouts):
        if rollout.reward is None:
            continue
        length = len(rollout.tokens)
        ids[row, :length], generation[row, :length], counts[row, :length] = (
            rollout.tokens,
            rollout.logprobs,
            rollout.sampled,
        )
        if (record := rollout.record) is not None:
            staleness[row, : record.length] = record.policy_epoch.staleness(step)
    return Batch(
        ids=torch.from_numpy(ids),
        counts=torch.from_numpy(counts),
        generation=torch.from_numpy(generation),
        advantages=torch.from_numpy(advantages.astype(np.float32).ravel()),
        staleness=torch.from_numpy(staleness),
    )
