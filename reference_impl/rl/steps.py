"""What the synchronous and the asynchronous loop have in common: what a run is made of, and one training step on rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference_impl.generation.distribution import Rule
from reference_impl.rl.advantages import group_advantages
from reference_impl.rl.loss import LossSettings
from reference_impl.rl.policy import Batch, train_step
from reference_impl.rl.queue import Counts
from reference_impl.rl.rollouts import Rollout
from reference_impl.staleness.consumption import Consumption, consume
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.rollouts import Rollouts


@dataclass(frozen=True)
class Plan:
    """What a run is made of.

    `prompts`, `group_size`
    : Episodes that a training step takes, and how often each is played.

    `steps`
    : The training step at which the run ends.

    `context`
    : Most tokens of a conversation.

    `normalize`, `leave_one_out`
    : How rewards become advantages.

    `minibatch`
    : Rollouts that one gradient step is made of; `None` makes one of all.

    `microbatch`
    : Rollouts that are in memory at a time.
    """

    prompts: int
    group_size: int
    steps: int
    context: int
    normalize: bool = True
    leave_one_out: bool = False
    minibatch: int | None = None
    microbatch: int = 32
    loss: LossSettings = field(default_factory=LossSettings)


@dataclass
class Learner:
    """What trains: a model, its optimizer, the rule that rollouts are sampled by, and how a step is made.

    `reference`
    : The weights that a `kl_weight` holds the policy to, by name; `None` without one.

    `max_norm`
    : What gradients are clipped to.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    rule: Rule
    plan: Plan
    reference: dict[str, Tensor] | None = None
    max_norm: float | None = 1.0

    def learn(self, step: int, rollouts: Sequence[Rollout], dropped: Sequence[Rollout] = ()) -> "StepDone":
        """Training step `step` on rollouts that lie group by group; `dropped` were too old for it.

        A step of which every rollout failed trains nothing, and has no reward and no staleness to report.
        """
        consumption = consumed(step, rollouts, dropped)
        metrics = measure(consumption)
        if len(consumption.rollouts):
            metrics |= {"reward": mean_reward(rollouts)} | train_step(
                self.model,
                self.optimizer,
                batch_of(rollouts, step, self.plan),
                self.plan.loss,
                self.rule,
                max_norm=self.max_norm,
                minibatch=self.plan.minibatch,
                microbatch=self.plan.microbatch,
                reference=self.reference,
            )
        return StepDone(step, list(rollouts), consumption, metrics, list(dropped))


@dataclass(frozen=True)
class StepDone:
    """One training step: what it was made of, and its metrics.

    `dropped`
    : Rollouts that were too old for it and were thrown away before it.

    `counts`
    : What has become of every rollout of the run by then.
    """

    step: int
    rollouts: list[Rollout]
    consumption: Consumption
    metrics: dict[str, float]
    dropped: list[Rollout] = field(default_factory=list)
    counts: Counts | None = None


def taken_from(rollouts: Sequence[Rollout]) -> Rollouts:
    """The records of all rollouts that reached the engine, with their rewards; one that did not is a failed one."""
    offered = Rollouts()
    for rollout in rollouts:
        if (record := rollout.record) is not None:
            offered.add(record, rollout.reward)
    return offered


def consumed(step: int, rollouts: Sequence[Rollout], dropped: Sequence[Rollout]) -> Consumption:
    """What the step takes, and what was thrown away for it: of a dropped group each rollout, however old it is itself."""
    offered = consume(step, taken_from([*rollouts, *dropped]))
    gone = {rollout.name for rollout in dropped}
    out = np.array([number for number in offered.rollouts if offered.names[number] in gone], np.int64)
    return replace(offered, rollouts=np.setdiff1d(offered.rollouts, out), over_bound=out, dropped=out)


def mean_reward(rollouts: Sequence[Rollout]) -> float:
    """Over the rollouts that have one; NaN where none has."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    return sum(rewards) / len(rewards) if rewards else float("nan")


def batch_of(rollouts: Sequence[Rollout], step: int, plan: Plan) -> Batch:
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
