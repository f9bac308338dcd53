"""Asynchronous GRPO: generation goes on while training does, and what is consumed is as stale as the bounds allow.

The loop keeps a {py:class}`~reference_impl.rl.queue.Queue` full, takes a step's groups from it, trains, and sends the new
weights. Where rollouts are played, and what "meanwhile" means, is a {py:class}`Generation`'s business: in this process on the
shared model ({py:class}`Colocated`), in another process ({py:mod}`reference_impl.rl.worker`), or on a clock that counts the
engine's steps ({py:mod}`reference_impl.rl.clock`).
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Protocol

from reference_impl.rl.player import Ended, Player
from reference_impl.rl.queue import Queue
from reference_impl.rl.steps import Learner, StepDone


class Generation(Protocol):
    """What plays groups for the loop."""

    def play(self, number: int) -> None:
        """Begin the group of this number."""

    def ended(self) -> list[Ended]:
        """Groups that have ended since the last call; waits until there is one."""

    def training(self) -> AbstractContextManager[None]:
        """The time in which the model is trained."""

    def update(self, epoch: int) -> None:
        """Go on with the weights that the model has now, as `epoch`."""

    def close(self) -> None:
        """Stop; groups under way are lost."""


def train(generation: Generation, learner: Learner, queue: Queue) -> Iterator[StepDone]:
    """Run the steps from the queue's up to the plan's; a step's number is the epoch of the newest weights.

    `generation` has the weights of that epoch when the loop begins. Groups that the queue knows as under way are begun
    (again): whoever played them before is gone.
    """
    for number in queue.in_flight:
        generation.play(number)
    for step in range(queue.step, learner.plan.steps):
        begun, dropped = time.perf_counter(), []
        while True:
            dropped += queue.drop()
            _fill(generation, queue, step)
            if (groups := queue.take()) is not None:
                break
            for ended in generation.ended():
                queue.finish(*ended)
        _fill(generation, queue, step)
        times = [begun, time.perf_counter()]
        taken, too_old = ([rollout for group in some for rollout in group.rollouts] for some in (groups, dropped))
        with generation.training():
            done = learner.learn(step, taken, too_old)
        times.append(time.perf_counter())
        generation.update(step + 1)
        times.append(time.perf_counter())
        parts = ("waiting", "training", "refit")
        spent = {f"{part}_seconds": b - a for part, a, b in zip(parts, times, times[1:], strict=False)}
        yield replace(done, metrics=done.metrics | spent, counts=queue.counts())


def _fill(generation: Generation, queue: Queue, epoch: int) -> None:
    """Begin as many groups as may be."""
    while queue.room(epoch):
        generation.play(queue.begin(epoch).number)


class Colocated:
    """Rollouts in this process, on the model that is trained: while it trains the engine sleeps, with rollouts under way.

    What becomes of their cache meanwhile is `kv_cache_management_mode`. Environments answer all the time.
    """

    def __init__(self, player: Player) -> None:
        self._player, self._loop = player, asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Ended]] = set()

    def play(self, number: int) -> None:
        """Begin the group of this number."""
        self._tasks.add(self._loop.create_task(self._player.play(number)))

    def ended(self) -> list[Ended]:
        """Groups that have ended since the last call; waits until there is one."""
        waited = asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        done, self._tasks = self._loop.run_until_complete(waited)
        return sorted((task.result() for task in done), key=lambda ended: ended[0])

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the engine to sleep; {py:meth}`update` wakes it."""
        self._loop.run_until_complete(self._player.pause())
        self._player.backend.finish_generation()
        yield

    def update(self, epoch: int) -> None:
        """Read the model again, and wake."""
        self._player.backend.update_weights(None, epoch=epoch)
        self._player.backend.prepare_for_generation()
        self._player.go_on()

    def close(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        self._loop.close()
