"""Synchronous GRPO on one shared model: prepare, generate, finish, consume, train, then the next epoch.

Every token of a step is sampled by the weights of that step, so its staleness is 0. The engine reads the parameters that
training changes; no weight is sent anywhere.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import batched

from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.rl.judging import Room
from reference_impl.rl.queue import Queue
from reference_impl.rl.rollouts import collect
from reference_impl.rl.steps import Learner, StepDone


def train(backend: GenerationInterface, learner: Learner, room: Room, queue: Queue) -> Iterator[StepDone]:
    """Run the steps from the queue's up to the plan's; a step's number is the epoch of the weights that it samples with.

    `backend` shares the learner's model. Nothing waits in `queue`: it numbers the groups, and keeps count of what becomes of
    them. The epoch goes on even where a step trains nothing.
    """
    plan = learner.plan
    backend.update_weights(None, epoch=queue.step)  # whatever the engine read of the model before, it reads again
    for step in range(queue.step, plan.steps):
        times = [time.perf_counter()]
        backend.prepare_for_generation()
        groups = [queue.begin(step) for _ in range(plan.prompts)]
        rollouts = collect(backend, room, [group.number for group in groups], plan.group_size, plan.context)
        for group, members in zip(groups, batched(rollouts, plan.group_size), strict=True):
            queue.finish(group.number, members)
        queue.take()
        backend.finish_generation()
        times.append(time.perf_counter())
        done = learner.learn(step, rollouts)
        times.append(time.perf_counter())
        backend.update_weights(None, epoch=step + 1)
        times.append(time.perf_counter())
        parts = ("generation", "training", "refit")
        spent = {f"{part}_seconds": b - a for part, a, b in zip(parts, times, times[1:], strict=False)}
        yield replace(done, metrics=done.metrics | spent, counts=queue.counts())
