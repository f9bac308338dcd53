"""Asynchronous training on a clock that counts the engine's steps: the interleaving is an input, and staleness follows from it.

The engine, the environments and the training are real. Only time is not: one step of the engine is one tick, a training step
lasts as many ticks as it is said to, and environments answer at once. So a run repeats exactly, on any machine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from reference_impl.generation.stepped import Batch, SteppedGeneration
from reference_impl.rl.judging import Room, Table
from reference_impl.rl.player import Ended
from reference_impl.rl.rollouts import Rollout, begin, hear, prompts_of, reply_to


@dataclass
class _Turn:
    """A rollout whose next response is being sampled."""

    rollout: Rollout
    table: Table
    batch: Batch


class Ticking:
    """Rollouts on a backend of its own model, a tick at a time.

    `ticks`
    : Of training step `n`, by `ticks(n)`: the engine goes on with the old weights for so long.

    `weights`
    : Those that training has made, by name; what is not copied may change under the engine.
    """

    def __init__(
        self,
        backend: SteppedGeneration,
        room: Room,
        group_size: int,
        context: int,
        ticks: Callable[[int], int],
        weights: Callable[[], dict[str, Tensor]],
    ) -> None:
        self.backend, self.room = backend, room
        self.group_size, self.context = group_size, context
        self.ticks, self.weights = ticks, weights
        self.now = 0
        self._turns: list[_Turn] = []
        self._groups: dict[int, list[Rollout]] = {}

    def play(self, number: int) -> None:
        """Begin the group of this number: its first tokens are sampled in the next tick that has room for them."""
        self._groups[number] = []
        for member in range(self.group_size):
            table = self.room.table()
            self._continue(begin(table.environment, number, member), table)

    def ended(self) -> list[Ended]:
        """Groups that have ended since the last call; ticks until there is one."""
        while not (done := self._complete()):
            self._tick()
        for number, _ in done:
            del self._groups[number]
        return done

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train at once; the ticks that it takes go by afterwards."""
        yield
        for _ in range(self.ticks(self.backend.epoch)):
            self._tick()

    def update(self, epoch: int) -> None:
        """Give the backend the new weights between two ticks."""
        self.backend.update_weights(self.weights(), epoch=epoch)

    def close(self) -> None:
        """Forget what is under way."""
        self._turns.clear()
        self._groups.clear()

    def _complete(self) -> list[Ended]:
        over = {number: group for number, group in self._groups.items() if len(group) == self.group_size}
        return [(number, sorted(group, key=lambda rollout: rollout.member)) for number, group in sorted(over.items())]

    def _tick(self) -> None:
        self.now += 1
        if self._turns:
            self.backend.step()
        under_way, self._turns = self._turns, []
        for turn in under_way:
            if not (outputs := self.backend.take(turn.batch)):
                self._turns.append(turn)
            for _, output in outputs:
                if (response := hear(turn.rollout, output)) is not None:
                    reply_to(turn.rollout, turn.table.wait(turn.table.judge(response)), self.context)
                self._continue(turn.rollout, turn.table)

    def _continue(self, rollout: Rollout, table: Table) -> None:
        """Ask for the next response, or count the rollout as over."""
        if rollout.over:
            self.room.give_back(table)
            self._groups[rollout.episode].append(rollout)
        else:
            self._turns.append(_Turn(rollout, table, self.backend.submit(prompts_of([rollout]))))
