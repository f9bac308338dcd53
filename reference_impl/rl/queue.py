"""What lies between generation and training when both go on at once: groups that are under way, and groups that wait.

Two bounds keep tokens from getting old, and do different things. *Admission* decides whether another group may begin: under
the weights of epoch `e`, no more have been begun than the training steps up to `e + lag` will take. Nothing that is begun
is thrown away for it, and generation stands still when training is the slower. *Consumption* looks at what was really
sampled: a group whose oldest token would be over `max_age` at the step that could take it is dropped. It is what holds when
a long group is overtaken by short ones, and what it drops is work that was done for nothing.

Every rollout that was begun ends up in exactly one place, {py:class}`Counts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from reference_impl.rl.rollouts import Rollout


@dataclass
class Group:
    """Rollouts of one episode; `number` counts groups in the order in which they were begun.

    `epoch`
    : Of the weights when it was begun. Its tokens may be of later ones.
    """

    number: int
    epoch: int
    rollouts: list[Rollout] = field(default_factory=list)  # given once, by `Queue.finish`

    @property
    def failed(self) -> int:
        """How many of its rollouts have no reward."""
        return sum(rollout.reward is None for rollout in self.rollouts)

    def age(self, step: int) -> int:
        """Staleness that its oldest sampled token would have at `step`; of a group without a stamped token, from `epoch`."""
        return step - self._oldest

    @cached_property
    def _oldest(self) -> int:
        records = [rollout.record for rollout in self.rollouts if rollout.reward is not None]
        runs = [record.of_sampled("policy_epoch") for record in records if record is not None and record.num_sampled]
        return min((each.oldest for each in runs if each.stamped), default=self.epoch)


@dataclass(frozen=True)
class Counts:
    """Rollouts by what became of them; `started` is the sum of the others."""

    started: int
    in_flight: int
    waiting: int
    consumed: int
    dropped: int
    failed: int

    def __post_init__(self) -> None:
        ended = self.in_flight + self.waiting + self.consumed + self.dropped + self.failed
        if ended != self.started:
            raise AssertionError(f"{self.started} rollouts were started and {ended} are accounted for: {self}")


class Queue:
    """Groups of `group_size` rollouts, of which a training step takes `prompts`.

    `lag`
    : For how many steps beyond the one that its weights are made for generation may begin groups; with 0, for none.

    `max_age`
    : The most that a consumed token may be stale. By default `lag`.

    `step`
    : The training step that takes next.
    """

    def __init__(self, prompts: int, group_size: int, lag: int, max_age: int | None = None, step: int = 0) -> None:
        for name, value, least in (("prompts", prompts, 1), ("group_size", group_size, 1), ("lag", lag, 0)):
            if value < least:
                raise ValueError(f"{name}: expected {least} or more, got {value}")
        self.prompts, self.group_size, self.lag, self.step = prompts, group_size, lag, step
        self.max_age = lag if max_age is None else max_age
        self.in_flight: dict[int, Group] = {}
        self.waiting: dict[int, Group] = {}
        self._begun = self._consumed = self._dropped = self._failed = 0

    def room(self, epoch: int) -> int:
        """How many groups may be begun now, under the weights of `epoch`."""
        steps = epoch + self.lag + 1 - self.step
        return max(0, steps * self.prompts - len(self.in_flight) - len(self.waiting))

    def begin(self, epoch: int) -> Group:
        """A new group, of the next episode. Raises `ValueError` where there is no room."""
        if not self.room(epoch):
            raise ValueError(f"no room: {len(self.in_flight)} groups are under way and {len(self.waiting)} wait")
        group = self.in_flight[self._begun] = Group(self._begun, epoch)
        self._begun += 1
        return group

    def finish(self, number: int, rollouts: Sequence[Rollout]) -> None:
        """A group's rollouts, all over. Raises `KeyError` for a group that is not under way."""
        if len(rollouts) != self.group_size or not all(rollout.over for rollout in rollouts):
            raise ValueError(f"group {number}: expected {self.group_size} rollouts that are over")
        group = self.in_flight.pop(number)
        group.rollouts = list(rollouts)
        self.waiting[number] = group

    def drop(self) -> list[Group]:
        """Take away every waiting group that is over `max_age` at the next step: it would only get older."""
        dropped = [group for group in self.waiting.values() if group.age(self.step) > self.max_age]
        for group in dropped:
            del self.waiting[group.number]
            self._failed += group.failed
            self._dropped += self.group_size - group.failed
        return dropped

    def take(self) -> list[Group] | None:
        """The groups of the next training step, those begun first before others; `None` while too few wait.

        A group of which every rollout failed counts like any other: where an environment is broken, steps go by that train
        nothing, and say so. None is over `max_age` if {py:meth}`drop` was called before.
        """
        if len(self.waiting) < self.prompts:
            return None
        taken = [self.waiting.pop(number) for number in sorted(self.waiting)[: self.prompts]]
        lost = sum(group.failed for group in taken)
        self._failed += lost
        self._consumed += self.prompts * self.group_size - lost
        self.step += 1
        return taken

    def counts(self) -> Counts:
        """What became of every rollout. A failed one counts as failed once its group is taken or dropped."""
        return Counts(
            started=self._begun * self.group_size,
            in_flight=len(self.in_flight) * self.group_size,
            waiting=len(self.waiting) * self.group_size,
            consumed=self._consumed,
            dropped=self._dropped,
            failed=self._failed,
        )

    def to_json(self) -> dict[str, Any]:
        """All of it, for a checkpoint: what waits whole, what is under way by its number."""
        return {
            "step": self.step,
            "counts": [self._begun, self._consumed, self._dropped, self._failed],
            "in_flight": [[group.number, group.epoch] for group in self.in_flight.values()],
            "waiting": [
                [group.number, group.epoch, [rollout.to_json() for rollout in group.rollouts]]
                for group in self.waiting.values()
            ],
        }

    def restore(self, known: dict[str, Any]) -> None:
        """Go on from what {py:meth}`to_json` made. Groups under way are so still, and whoever plays them begins them anew."""
        self.step = known["step"]
        self._begun, self._consumed, self._dropped, self._failed = known["counts"]
        self.in_flight = {number: Group(number, epoch) for number, epoch in known["in_flight"]}
        self.waiting = {
            number: Group(number, epoch, [Rollout.from_json(each) for each in rollouts])
            for number, epoch, rollouts in known["waiting"]
        }
