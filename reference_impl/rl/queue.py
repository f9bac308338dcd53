"""What lies between generation and training when both go on at once: groups that are under way, and groups that wait.

Two bounds keep tokens from getting old, and do different things. *Admission* decides whether another group may begin: no
more are under way or waiting than the next `lag + 1` training steps will take. Nothing that is begun is thrown away for
it, and generation stands still when training is the slower. *Consumption* looks at what was really sampled: a group
whose oldest token would be over `max_age` at the step that could take it is dropped. It is what holds when a long group is
overtaken by short ones, and what it drops is work that was done for nothing.

Every rollout that was begun ends up in exactly one place, {py:class}`Counts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference_impl.rl.rollouts import Rollout


@dataclass
class Group:
    """Rollouts of one episode; `number` counts groups in the order in which they were begun.

    `epoch`
    : Of the weights when it was begun. Its tokens may be of later ones.
    """

    number: int
    epoch: int
    rollouts: list[Rollout] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """How many of its rollouts have no reward."""
        return sum(rollout.reward is None for rollout in self.rollouts)

    def age(self, step: int) -> int:
        """Staleness that its oldest sampled token would have at `step`; of a group without a stamped token, from `epoch`."""
        records = [rollout.record for rollout in self.rollouts if rollout.reward is not None]
        runs = [record.of_sampled("policy_epoch") for record in records if record is not None and record.num_sampled]
        return step - min((each.oldest for each in runs if each.stamped), default=self.epoch)


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
    : How many steps ahead of training generation may begin groups; 0 begins those of the current step only.

    `max_age`
    : The most that a consumed token may be stale. By default `lag`.
    """

    def __init__(self, prompts: int, group_size: int, lag: int, max_age: int | None = None) -> None:
        for name, value, least in (("prompts", prompts, 1), ("group_size", group_size, 1), ("lag", lag, 0)):
            if value < least:
                raise ValueError(f"{name}: expected {least} or more, got {value}")
        self.prompts, self.group_size, self.lag = prompts, group_size, lag
        self.max_age = lag if max_age is None else max_age
        self.in_flight: dict[int, Group] = {}
        self.waiting: dict[int, Group] = {}
        self._begun = self._consumed = self._dropped = self._failed = 0

    @property
    def room(self) -> int:
        """How many groups may be begun now."""
        return max(0, (self.lag + 1) * self.prompts - len(self.in_flight) - len(self.waiting))

    def begin(self, epoch: int) -> Group:
        """A new group, of the next episode. Raises `ValueError` where there is no room."""
        if not self.room:
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
        if group.failed == self.group_size:  # nothing to train on
            self._failed += self.group_size
        else:
            self.waiting[number] = group

    def take(self, step: int) -> list[Group] | None:
        """The groups of training step `step`, those begun first before others; `None` while too few wait.

        First drops every waiting group that is over `max_age` at this step, whether the step can be taken or not: it would
        only get older.
        """
        for number in [number for number, group in self.waiting.items() if group.age(step) > self.max_age]:
            group = self.waiting.pop(number)
            self._failed += group.failed
            self._dropped += self.group_size - group.failed
        if len(self.waiting) < self.prompts:
            return None
        taken = [self.waiting.pop(number) for number in sorted(self.waiting)[: self.prompts]]
        lost = sum(group.failed for group in taken)
        self._failed += lost
        self._consumed += self.prompts * self.group_size - lost
        return taken

    def counts(self) -> Counts:
        """What became of every rollout. A failed one counts as failed when its group is taken, dropped or has failed whole."""
        return Counts(
            started=self._begun * self.group_size,
            in_flight=len(self.in_flight) * self.group_size,
            waiting=len(self.waiting) * self.group_size,
            consumed=self._consumed,
            dropped=self._dropped,
            failed=self._failed,
        )
