"""The two bounds and the accounting: by hand, and against a list of everything that ever happened."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reference_impl.rl.queue import Counts, Queue
from reference_impl.rl.rollouts import Rollout
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord


def rollout(number, member, epochs, failed=False):
    """One that was prompted with one token and sampled one at each of these epochs."""
    policy = EpochRuns.from_tokens([epochs[0], *epochs])
    record = RequestRecord(
        request=0,
        policy_epoch=policy,
        kv_cache_epoch=policy,
        oldest_attended_kv_epoch=EpochRuns.from_tokens([None, *epochs]),
        sampled=((1, 1 + len(epochs)),),
        num_evictions=0,
        num_preemptions=0,
        num_recomputes=0,
        prefix_cached_tokens=0,
        admission_epoch=epochs[0],
        completion_epoch=epochs[-1],
        status="finished",
    )
    made = Rollout(number, member, turns=[record])
    made.reward, made.reason = (None, "broken") if failed else (1.0, None)
    return made


def over(group, *epochs, failed=()):
    """All rollouts of a group of two, each with the same epochs."""
    return [rollout(group.number, member, list(epochs), member in failed) for member in range(2)]


def test_admission_keeps_generation_at_most_lag_steps_ahead():
    """Two groups a step and a lag of 1: four may be begun; two more once a step has taken two."""
    queue = Queue(prompts=2, group_size=2, lag=1)
    groups = [queue.begin(0) for _ in range(4)]
    assert queue.room(0) == 0
    with pytest.raises(ValueError, match="no room: 4 groups are under way and 0 wait"):
        queue.begin(0)
    for group in groups[:2]:
        queue.finish(group.number, over(group, 0))
    assert queue.room(0) == 0, "what waits takes room as well"
    assert [group.number for group in queue.take()] == [0, 1]
    assert queue.room(0) == 0, "the two that wait are all that step 1 may have of epoch 0"
    assert queue.room(1) == 2


def test_without_lag_nothing_is_begun_while_a_step_trains():
    """What the weights of epoch 0 begin would be a step old when it is taken."""
    queue = Queue(prompts=1, group_size=2, lag=0)
    queue.finish(0, over(queue.begin(0), 0))
    assert [group.number for group in queue.take()] == [0]
    assert queue.room(0) == 0
    assert queue.room(1) == 1


def test_the_first_begun_are_taken_first():
    """Finished in the order 3, 1, 0: a step of two takes 0 and 1, and then waits for a second one beside 3."""
    queue = Queue(prompts=2, group_size=2, lag=3)
    groups = [queue.begin(0) for _ in range(4)]
    for number in (3, 1, 0):
        queue.finish(number, over(groups[number], 0))
    assert [group.number for group in queue.take()] == [0, 1]
    assert queue.take() is None
    queue.finish(2, over(groups[2], 0, 1))
    assert [group.number for group in queue.take()] == [2, 3]


def test_consumption_drops_what_is_over_age():
    """A rollout of epochs 0, 1, 2 is 2 old at step 2 and 3 at step 3, where a bound of 2 drops its group."""
    queue = Queue(prompts=1, group_size=2, lag=5, max_age=2, step=3)
    old, new = queue.begin(0), queue.begin(0)
    queue.finish(old.number, over(old, 0, 1, 2))
    assert old.age(2) == 2
    queue.finish(new.number, over(new, 2))
    assert queue.drop() == [old]
    assert queue.take() == [new]
    assert queue.counts() == Counts(started=4, in_flight=0, waiting=0, consumed=2, dropped=2, failed=0)


def test_failed_rollouts_have_a_place_of_their_own():
    """One failed member of two, then a group that failed whole and is taken like any other; an over-aged group drops only
    what had not failed."""
    queue = Queue(prompts=1, group_size=2, lag=5, max_age=1)
    half, whole, aged = (queue.begin(0) for _ in range(3))
    queue.finish(whole.number, over(whole, 0, failed=(0, 1)))
    queue.finish(half.number, over(half, 0, failed=(1,)))
    assert queue.counts() == Counts(started=6, in_flight=2, waiting=4, consumed=0, dropped=0, failed=0)
    assert (queue.take(), queue.take()) == ([half], [whole])
    assert queue.counts() == Counts(started=6, in_flight=2, waiting=0, consumed=1, dropped=0, failed=3)
    queue.finish(aged.number, over(aged, 0, failed=(0,)))
    assert queue.drop() == [aged]
    assert queue.take() is None
    assert queue.counts() == Counts(started=6, in_flight=0, waiting=0, consumed=1, dropped=1, failed=4)


def test_what_was_begun_early_is_as_old_as_its_oldest_token():
    """Begun at 0 but sampled at 2 and 3: 1 old at step 3. Without a reward its tokens do not count."""
    queue = Queue(prompts=1, group_size=2, lag=5)
    group = queue.begin(0)
    queue.finish(group.number, [rollout(0, 0, [2, 3]), rollout(0, 1, [0], failed=True)])
    assert group.age(3) == 1


@pytest.mark.parametrize("settings_", [{"prompts": 0}, {"group_size": 0}, {"lag": -1}])
def test_sizes_that_make_no_sense(settings_):
    with pytest.raises(ValueError, match=f"{next(iter(settings_))}: expected"):
        Queue(**({"prompts": 1, "group_size": 1, "lag": 0} | settings_))


def test_a_group_ends_once_and_whole():
    queue = Queue(prompts=1, group_size=2, lag=0)
    group = queue.begin(0)
    with pytest.raises(ValueError, match="expected 2 rollouts that are over"):
        queue.finish(group.number, over(group, 0)[:1])
    queue.finish(group.number, over(group, 0))
    with pytest.raises(KeyError):
        queue.finish(group.number, over(group, 0))


def test_going_on_from_a_checkpoint():
    """What waits comes back whole, what is under way by its number; the counts add up and numbers go on."""
    queue = Queue(prompts=1, group_size=2, lag=3)
    groups = [queue.begin(0) for _ in range(4)]
    for group, failed in zip(groups[:3], ((), (1,), (0, 1)), strict=True):
        queue.finish(group.number, over(group, 0, failed=failed))
    queue.take()
    again = Queue(prompts=1, group_size=2, lag=3)
    again.restore(json.loads(json.dumps(queue.to_json())))
    assert (again.step, again.counts(), list(again.in_flight)) == (1, queue.counts(), [3])
    assert again.waiting == queue.waiting
    assert again.begin(1).number == 4
    again.finish(3, over(groups[3], 1))
    assert [group.number for group in again.take()] == [1]


class Interleaving(RuleBasedStateMachine):
    """Any order of beginnings, endings, steps and checkpoints; every rollout is looked for in a list of all that was begun."""

    def __init__(self):
        super().__init__()
        self.queue = Queue(prompts=2, group_size=2, lag=1, max_age=2)
        self.step = self.epoch = 0
        self.fate = {}

    @precondition(lambda self: self.queue.room(self.epoch))
    @rule()
    def begin(self):
        self.fate[self.queue.begin(self.epoch).number] = "in_flight"

    @precondition(lambda self: self.queue.in_flight)
    @rule(data=st.data())
    def end(self, data):
        number = data.draw(st.sampled_from(sorted(self.queue.in_flight)))
        group = self.queue.in_flight[number]
        epochs = sorted(data.draw(st.lists(st.integers(group.epoch, self.epoch), min_size=1, max_size=3)))
        failed = data.draw(st.sets(st.integers(0, 1)))
        self.queue.finish(number, over(group, *epochs, failed=failed))
        oldest = group.epoch if len(failed) == 2 else epochs[0]
        self.fate[number] = ("waiting", oldest, failed)

    @precondition(lambda self: self.epoch == self.step)
    @rule()
    def take(self):
        waiting = {n: fate for n, fate in self.fate.items() if fate[0] == "waiting"}
        old = {n for n, (_, oldest, _) in waiting.items() if self.step - oldest > 2}
        assert {group.number for group in self.queue.drop()} == old
        for number in old:
            self.fate[number] = ("dropped", *waiting[number][1:])
        expected = sorted(set(waiting) - old)[:2]
        taken = self.queue.take()
        if len(expected) < 2:
            assert taken is None
            return
        assert [group.number for group in taken] == expected
        for number in expected:
            self.fate[number] = ("consumed", *waiting[number][1:])
            assert self.step - waiting[number][1] <= 2
        self.step += 1

    @precondition(lambda self: self.epoch < self.step)
    @rule()
    def update(self):
        self.epoch += 1

    @rule()
    def stop_and_go_on(self):
        known = json.loads(json.dumps(self.queue.to_json()))
        self.queue = Queue(prompts=2, group_size=2, lag=1, max_age=2)
        self.queue.restore(known)

    @invariant()
    def every_rollout_is_in_one_place(self):
        found = dict.fromkeys(("in_flight", "waiting", "consumed", "dropped", "failed"), 0)
        for fate in self.fate.values():
            if isinstance(fate, str):
                found[fate] += 2
            else:
                lost = len(fate[2]) if fate[0] in ("consumed", "dropped") else 0
                found[fate[0]] += 2 - lost
                found["failed"] += lost
        assert self.queue.counts() == Counts(started=2 * len(self.fate), **found)
        assert len(self.queue.in_flight) + len(self.queue.waiting) <= 4


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
