"""Asynchronous training on the engine's own ticks: every token's staleness is known before the run, and is what is recorded."""

import math

import pytest
import torch
from support.batches import recipe

from reference_impl.generation.registry import create_backend
from reference_impl.models import tiny
from reference_impl.models.checkpoints import parameters_of
from reference_impl.models.gpt import build_gpt_model
from reference_impl.platforms.cpu import cpu_platform
from reference_impl.rl.asynchronous import train
from reference_impl.rl.clock import Ticking
from reference_impl.rl.environments import Reply
from reference_impl.rl.judging import Room
from reference_impl.rl.queue import Queue
from reference_impl.rl.queueing import completion_gap, engine_lag, step_time, token_staleness, useful_lag, utilisation
from reference_impl.rl.steps import Learner, Plan
from reference_impl.staleness.epochs import MISSING

PROMPTS, GROUP = 2, 2


class LowBytes:
    def reset(self, episode):
        return [episode % 7, 200, 9]

    def step(self, response):
        return Reply(done=True, reward=sum(token < 128 for token in response) / len(response))


class TwoTurns(LowBytes):
    """Says one token after the first response."""

    def reset(self, episode):
        self.done = 0
        return super().reset(episode)

    def step(self, response):
        self.done += 1
        return Reply(done=self.done == 2, reward=1.0, observation=(5,))


def run(lag, tokens, ticks, steps, *, mode="persist", environment=LowBytes, max_requests=64):
    """The steps of a run, and the tick of each of its updates; training step n lasts `ticks(n)`."""
    mcore = {"max_requests": max_requests, "kv_cache_management_mode": mode}
    made = recipe(backend="reference", length=64, max_new_tokens=tokens, stop_token_ids=[], mcore=mcore)
    with cpu_platform():
        model = build_gpt_model(tiny.SHAPE, tiny.random_weights())
        with create_backend(made) as backend:  # on weights of its own
            plan = Plan(PROMPTS, GROUP, steps, context=64)
            learner = Learner(model, torch.optim.SGD(model.parameters(), 0.01), (1.0, 0, 0.0), plan)
            clock = Ticking(backend, Room(environment), GROUP, 64, ticks, lambda: parameters_of(model))
            queue = Queue(PROMPTS, GROUP, lag)
            done, updates = [], []
            for each in train(clock, learner, queue):
                done.append(each)
                updates.append(clock.now)
    return done, updates


def tokens_of(rollout):
    """[(policy epoch, KV epoch)] of its sampled tokens."""
    record = rollout.record
    both = zip(record.policy_epoch.expand().tolist(), record.kv_cache_epoch.expand().tolist(), strict=True)
    return [pair for pair, sampled in zip(both, rollout.sampled, strict=True) if sampled]


def expected(lag, tokens, ticks, steps):
    """What a list of ticks says, without a queue or an engine: [(take, update)] of each step, epochs of its tokens.

    The groups of step n are begun at the update to epoch n - lag, or at the start; their token i is sampled i + 1 ticks later.
    """
    updates, epochs = [0], []  # updates[e]: the tick at which epoch e begins
    for step in range(steps):
        begun = updates[max(0, step - lag)]
        take = max(updates[step], begun + tokens)
        updates.append(take + ticks(step))
        epochs.append([begun + place + 1 for place in range(tokens)])
    # A tick samples with the newest weights of those that came before it.
    return updates[1:], [
        [max(e for e, at in enumerate(updates) if at < tick) for tick in ticks_of] for ticks_of in epochs
    ]


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("tokens", "ticks"), [(6, 4), (6, 2), (5, 7), (12, 3)], ids=["6 in 4", "6 in 2", "5 in 7", "12 in 3"]
)
def test_every_token_is_as_old_as_the_list_of_ticks_says(lag, tokens, ticks):
    done, updates = run(lag, tokens, lambda step: ticks, 9)
    said, epochs = expected(lag, tokens, lambda step: ticks, 9)
    assert updates == said
    for each, policy in zip(done, epochs, strict=True):
        for rollout in each.rollouts:
            assert [epoch for epoch, _ in tokens_of(rollout)] == policy
        assert each.metrics["max_policy_staleness"] == each.step - policy[0] <= lag
        assert each.metrics["mean_completion_gap"] == each.step - policy[-1]
        assert not each.dropped


def test_training_steps_of_any_length():
    """One step that lasts ten times as long: what is generated meanwhile waits, and is no older than the bound."""
    done, updates = run(2, 6, lambda step: 30 if step == 3 else 3, 10)
    said, epochs = expected(2, 6, lambda step: 30 if step == 3 else 3, 10)
    assert updates == said
    assert [each.metrics["max_policy_staleness"] for each in done] == [
        each.step - e[0] for each, e in zip(done, epochs, strict=True)
    ]


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
@pytest.mark.parametrize(("tokens", "ticks"), [(6, 4), (8, 8), (12, 3), (6, 6)])
def test_the_laws_of_queueing(lag, tokens, ticks):
    """Of a run past its first steps, where a step lasts a whole number of ticks: pace, first and last token's age."""
    law = step_time(ticks, tokens, lag)
    done, updates = run(lag, tokens, lambda step: ticks, 16)
    measured = (updates[-1] - updates[-1 - (lag + 1)]) / (lag + 1)
    assert measured == pytest.approx(law)
    if lag < useful_lag(ticks, tokens):
        with pytest.raises(ValueError, match=f"lag {lag}: the trainer waits for rollouts below"):
            token_staleness(lag, 0, tokens, ticks, tokens)
        return
    for each in done[-3:]:
        ages = [each.step - epoch for epoch, _ in tokens_of(each.rollouts[0])]
        assert ages == [token_staleness(lag, place, tokens, ticks, tokens) for place in range(tokens)]
        assert each.metrics["mean_completion_gap"] == completion_gap(lag, tokens, ticks, tokens)


def test_the_laws_by_hand():
    """Training 4, generation 6: 10 a step without lag, 5 with one, and 4 from 2 on, where the trainer never waits."""
    assert [step_time(4, 6, lag) for lag in (0, 1, 2, 3)] == [10, 5, 4, 4]
    assert [utilisation(4, 6, lag) for lag in (0, 1, 2)] == [0.4, 0.8, 1.0]
    assert useful_lag(4, 6) == 2
    assert [token_staleness(2, place, 6, 4, 6) for place in range(6)] == [2, 2, 2, 2, 1, 1]
    assert completion_gap(2, 6, 4, 6) == 1
    assert (engine_lag(256, 64), engine_lag(256, 64, ranks=2), engine_lag(32, 64)) == (3, 7, -1)


def test_persist_keeps_keys_and_values_recompute_renews_them():
    """6 tokens, an update each 4 ticks, so one within each rollout: after its 4th token.

    With `persist` the token that was sampled last before it gets its keys and values after it, and the others keep theirs.
    With `recompute` all have those of the newest weights.
    """
    for mode, kv in (("persist", [0, 0, 0, 1, 1, 1]), ("recompute", [1, 1, 1, 1, 1, 1])):
        done, _ = run(2, 6, lambda step: 4, 8, mode=mode)
        each = done[-1]
        for rollout in each.rollouts:
            oldest = tokens_of(rollout)[0][0]
            assert [(p - oldest, k - oldest) for p, k in tokens_of(rollout)] == list(
                zip([0, 0, 0, 0, 1, 1], kv, strict=True)
            )
        assert each.metrics["max_policy_staleness"] == 2
        assert each.metrics["max_kv_cache_staleness"] == (2 if mode == "persist" else 1)
        assert each.consumption.columns.num_evictions.sum() == 0


def test_turns_of_one_rollout_may_be_of_several_checkpoints():
    """Two turns of 4 tokens, an update after the first: the tool's token between them has no policy epoch."""
    done, _ = run(2, 4, lambda step: 4, 8, environment=TwoTurns)
    rollout = done[-1].rollouts[0]
    assert rollout.sampled == [False] * 3 + [True] * 4 + [False] + [True] * 4
    policy = rollout.record.policy_epoch.expand().tolist()
    assert policy[7] == MISSING
    assert {policy[place] for place in range(3, 7)} == {policy[3]}
    assert {policy[place] for place in range(8, 12)} == {policy[3] + 1}
    assert done[-1].metrics["consumed_tokens"] == 8 * PROMPTS * GROUP


def test_a_crowded_engine_keeps_requests_that_have_no_token_yet():
    """Room for one step's rollouts at a time: with lag 3 the bound is kept, and no first token is older than 1."""
    done, _ = run(3, 6, lambda step: 2, 10, max_requests=PROMPTS * GROUP)
    assert engine_lag(PROMPTS * GROUP, PROMPTS * GROUP) == 0
    for each in done:
        assert each.metrics["max_policy_staleness"] <= 3
    assert max(each.metrics["max_policy_staleness"] for each in done[4:]) < 3
    assert math.isclose(done[-1].counts.started, 4 * (10 + 3))
