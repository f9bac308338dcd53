"""What a step consumes: values worked out by hand, every bound, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.records import RequestRecord, merge_turns
from reference_impl.staleness.rollouts import Rollouts


def rollout(name, policy, kv=None, attended=None, prompt=(), **rest):
    """A record whose sampled tokens have these epochs, after a prompt with its own; KV as policy if not given."""
    runs = EpochRuns.from_tokens
    unsampled = [None] * len(prompt)
    length = len(prompt) + len(policy)
    return RequestRecord(
        request=name,
        policy_epoch=runs([*prompt, *policy]),
        kv_cache_epoch=runs([*prompt, *(policy if kv is None else kv)]),
        oldest_attended_kv_epoch=runs([*unsampled, *([None] * len(policy) if attended is None else attended)]),
        sampled=((len(prompt), length),) if policy else (),
        **rest,
    )


def four():
    """Oldest policy epochs 4, 2, 5, 0 and oldest KV epochs 4, 3, 5, 1."""
    return [
        rollout("a", [4, 4], [4, 5]),
        rollout("b", [2, 3], [3, 3], num_evictions=1),
        rollout("c", [5, 5, 5], [5, 5, 5]),
        rollout("d", [0, 1], [1, 1], num_evictions=2),
    ]


def test_the_worked_example_at_step_6():
    """Policy 2, 4, 1, 6: mean 3.25. KV 2, 3, 1, 5: mean 2.75."""
    consumption = consume(6, four())
    assert consumption.per_rollout("policy").oldest.tolist() == [2, 4, 1, 6]
    assert consumption.per_rollout("kv_cache").oldest.tolist() == [2, 3, 1, 5]
    values = measure(consumption)
    assert values["mean_policy_staleness"] == 3.25
    assert (values["max_policy_staleness"], values["min_policy_staleness"]) == (6, 1)
    assert values["mean_kv_cache_staleness"] == 2.75
    assert (values["max_kv_cache_staleness"], values["min_kv_cache_staleness"]) == (5, 1)
    assert values["mean_policy_last_token_staleness"] == 2.75  # 2, 3, 1, 5
    assert (values["total_eviction_count"], values["max_num_evictions"]) == (3, 2)


def test_nine_tokens_at_1_and_one_at_5_consumed_at_6():
    """Nine tokens 5 steps old and one 1 step old: 46 / 10, deviation sqrt((9 * 0.4^2 + 3.6^2) / 10) = 1.2."""
    consumption = consume(6, [rollout("a", [1] * 9 + [5])])
    assert consumption.tokens.tolist() == [9, 1]  # two rows, not ten
    policy = consumption.per_rollout("policy")
    assert policy.mean.tolist() == [4.6]
    assert policy.std == pytest.approx([1.2])
    assert consumption.histogram("policy") == {1: 1, 5: 9}
    assert measure(consumption)["token_mean_policy_staleness"] == 4.6


def test_the_prompt_does_not_count():
    consumption = consume(6, [rollout("a", [5, 5], prompt=[0, 0, 0])])
    assert consumption.histogram("policy") == {1: 2}
    assert measure(consumption)["max_policy_staleness"] == 1
    assert consumption.lengths(consumption.rollouts).tolist() == [2]


def test_turns_count_each_token_once():
    """4 tokens at 5 and 3 at 6, consumed at 7: (4 * 2 + 3 * 1) / 7 = 11 / 7."""
    first = rollout("t", [5] * 4)
    second = RequestRecord(
        request="t",
        policy_epoch=EpochRuns.from_boundaries([(0, 5), (4, 6)], 7),
        kv_cache_epoch=EpochRuns.from_boundaries([(0, 5), (4, 6)], 7),
        oldest_attended_kv_epoch=EpochRuns.missing(7),
        sampled=((4, 7),),
    )
    values = measure(consume(7, [merge_turns([first, second])]))
    assert values["token_mean_policy_staleness"] == pytest.approx(11 / 7)
    assert f"{values['token_mean_policy_staleness']:.4f}" == "1.5714"
    assert values["consumed_tokens"] == 7


@pytest.mark.parametrize(("step", "gap"), [(7, 1.5), (9, 3.5)])
def test_the_completion_gap_grows_with_the_step(step, gap):
    done = [rollout("a", [5], completion_epoch=5), rollout("b", [5, 6], completion_epoch=6), rollout("c", [5])]
    assert measure(consume(step, done))["mean_completion_gap"] == gap  # the third does not say when it ended


# --- who is left out --------------------------------------------------------------------------------------------------


def test_failed_and_empty_rollouts_are_counted_and_left_out():
    offered = [
        *four(),
        rollout("f", [0, 0, 0], status="failed"),
        rollout("e", [], prompt=[0]),
        rollout("g", [], status="failed"),
    ]
    consumption = consume(6, offered)
    assert consumption.rollouts.tolist() == [0, 1, 2, 3]
    assert (consumption.failed, consumption.empty) == (2, 1)
    values = measure(consumption)
    assert values["mean_policy_staleness"] == 3.25
    assert (values["consumed_rollouts"], values["failed_rollouts"], values["empty_rollouts"]) == (4, 2, 1)


def test_an_aborted_rollout_counts_with_what_it_had_come_to():
    assert measure(consume(6, [rollout("a", [4], status="aborted")]))["mean_policy_staleness"] == 2


@pytest.mark.parametrize("offered", [[], [rollout("a", [1], status="failed"), rollout("b", [], status="failed")]])
def test_a_step_without_a_usable_rollout_logs_counts_and_no_staleness(offered):
    values = measure(consume(6, offered, max_staleness=1, when_older="drop"))
    assert values == {
        "consumed_rollouts": 0,
        "consumed_tokens": 0,
        "failed_rollouts": len(offered),
        "empty_rollouts": 0,
        "over_bound_rollouts": 0,
        "dropped_rollouts": 0,
    }


def test_what_has_no_stamp_shows_in_the_coverage():
    half = rollout("a", [4, 4, None, None], [5, None, None, None], [None] * 4)
    none = rollout("b", [None] * 4, [None] * 4)
    consumption = consume(6, [half, none])
    values = measure(consumption)
    assert (values["policy_coverage"], values["kv_cache_coverage"], values["attended_kv_coverage"]) == (0.25, 0.125, 0)
    assert values["mean_policy_staleness"] == 2  # of the rollout that has any
    assert values["token_mean_kv_cache_staleness"] == 1
    assert "mean_policy_last_token_staleness" not in values  # neither last token has one
    assert "mean_attended_kv_staleness" not in values
    assert values["mixed_policy_ratio"] == 0
    policy = consumption.per_rollout("policy")
    assert policy.stamped.tolist() == [2, 0]
    assert np.isnan(policy.last).all() and np.isnan(policy.oldest).tolist() == [False, True]


def test_counts_that_nobody_knows_are_left_out_and_not_zero():
    unknown = dict.fromkeys(("num_evictions", "num_preemptions", "num_recomputes", "prefix_cached_tokens"))
    known = {"num_evictions": 2, "num_preemptions": 3, "num_recomputes": 0, "prefix_cached_tokens": 8}
    values = measure(consume(1, [rollout("a", [1], **unknown)]))
    assert not {name for name in values if name.startswith("total_") or name == "max_num_evictions"}
    values = measure(consume(1, [rollout("a", [1], **unknown), rollout("b", [1], **known)]))
    assert (values["total_eviction_count"], values["max_num_evictions"]) == (2, 2)
    assert (values["total_preemption_count"], values["total_recompute_count"]) == (3, 0)
    assert values["total_prefix_cached_tokens"] == 8


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "usable"), [(10, True), (11, True), (12, False)])
def test_a_bound_of_1_uses_a_rollout_of_epoch_10_at_10_and_at_11(step, usable):
    consumption = consume(step, [rollout("v10", [10, 10])], max_staleness=1, when_older="drop")
    assert consumption.rollouts.tolist() == ([0] if usable else [])
    assert consumption.dropped.tolist() == consumption.over_bound.tolist() == ([] if usable else [0])


def test_keep_trains_on_what_is_too_old_and_counts_it():
    values = measure(consume(6, four(), max_staleness=3))
    assert (values["over_bound_rollouts"], values["dropped_rollouts"], values["consumed_rollouts"]) == (2, 0, 4)
    assert values["mean_policy_staleness"] == 3.25
    assert "mean_dropped_length" not in values


def test_drop_leaves_it_out_and_keeps_its_lengths():
    offered = [rollout("long", [1] * 8), rollout("short", [5] * 2), rollout("longer", [0, 5] + [6] * 8)]
    consumption = consume(6, offered, max_staleness=4, when_older="drop")
    assert consumption.rollouts.tolist() == [1]
    assert consumption.dropped.tolist() == consumption.over_bound.tolist() == [0, 2]  # one old token is enough
    values = measure(consumption)
    assert (values["mean_dropped_length"], values["mean_consumed_length"]) == (9, 2)
    assert (values["mean_policy_staleness"], values["token_mean_policy_staleness"]) == (1, 1)
    assert values["consumed_tokens"] == 2


def test_a_rollout_between_two_that_are_dropped_keeps_its_own_tokens():
    offered = [rollout("a", [1, 2]), rollout("b", [3, 4, 4]), rollout("c", [0]), rollout("d", [5, 6, 6, 6])]
    consumption = consume(6, offered, max_staleness=3, when_older="drop")
    assert consumption.rollouts.tolist() == [1, 3]
    assert consumption.tokens.tolist() == [1, 2, 1, 3]
    assert consumption.per_rollout("policy").oldest.tolist() == [3, 1]
    assert consumption.histogram("policy") == {0: 3, 1: 1, 2: 2, 3: 1}


def test_a_rollout_without_a_stamp_is_never_over_the_bound():
    consumption = consume(6, [rollout("a", [None, None])], max_staleness=0, when_older="drop")
    assert consumption.rollouts.tolist() == [0]


def test_wait_consumes_nothing_while_a_request_under_way_would_be_too_old():
    """Bound 2 at step 6: a request under way with a token of epoch 4 would be 3 steps old at step 7."""
    late, on_time = rollout("late", [4, 6]), rollout("on time", [5, 6])
    begun, unstamped = rollout("begun", [], prompt=[0]), rollout("unstamped", [None])
    waiting = consume(6, four(), max_staleness=2, when_older="wait", in_flight=[late, on_time, begun, unstamped])
    assert waiting.waiting_for == ("late",)
    assert len(waiting.rollouts) == len(waiting.dropped) == 0
    assert waiting.over_bound.tolist() == [1, 3]
    assert "mean_policy_staleness" not in measure(waiting)


def test_wait_drops_what_is_too_old_once_nothing_is_under_way_that_would_be():
    consumption = consume(6, four(), max_staleness=2, when_older="wait", in_flight=[rollout("on time", [5])])
    assert consumption.waiting_for == ()
    assert (consumption.rollouts.tolist(), consumption.dropped.tolist()) == ([0, 2], [1, 3])


@pytest.mark.parametrize("when_older", ["keep", "drop"])
def test_only_wait_looks_at_what_is_under_way(when_older):
    consumption = consume(6, four(), max_staleness=2, when_older=when_older, in_flight=[rollout("late", [0])])
    assert consumption.waiting_for == ()


def test_without_a_bound_everything_is_consumed_whatever_is_said_of_older_ones():
    assert len(consume(6, four(), when_older="drop").rollouts) == 4


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_step_older_than_an_epoch_names_the_sampled_token():
    offered = [rollout("a", [1]), rollout("b", [3, 3, 5, 5], prompt=[3, 3])]
    with pytest.raises(
        ValueError, match=r"^step 4 is older than the policy epoch 5 of sampled token 2 of request 'b'$"
    ):
        consume(4, offered)


def test_a_step_older_than_a_kv_epoch_names_the_token():
    with pytest.raises(
        ValueError, match=r"^step 4 is older than the kv_cache epoch 5 of sampled token 1 of request 7$"
    ):
        consume(4, [rollout(7, [3, 3], [3, 5])])


def test_a_step_older_than_a_completion_names_the_request():
    with pytest.raises(ValueError, match=r"^step 4 is older than the completion epoch 5 of request 'a'$"):
        consume(4, [rollout("a", [3], completion_epoch=5)])


def test_a_failed_rollout_may_be_from_the_future():
    assert consume(4, [rollout("a", [9], status="failed")]).failed == 1


@pytest.mark.parametrize("step", [-1, 1.0, True, "6", None])
def test_a_step_is_an_integer_of_0_or_more(step):
    with pytest.raises(ValueError, match="^step must be an integer of 0 or more, got "):
        consume(step, [])


def test_other_words_for_when_older_and_a_negative_bound_are_refused():
    with pytest.raises(ValueError, match="^when_older: expected one of keep, drop, wait, got 'wiat'$"):
        consume(6, [], when_older="wiat")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^max_staleness must be an integer of 0 or more, got -1$"):
        consume(6, [], max_staleness=-1)


def test_a_rollout_counts_once():
    with pytest.raises(ValueError, match="^request 'a' is here already; a rollout counts once$"):
        consume(6, [*four(), rollout("a", [6])])


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_is_a_number(reward):
    rollouts = Rollouts()
    with pytest.raises(ValueError, match="^reward of request 'a' must be a number, got "):
        rollouts.add(rollout("a", [1]), reward)
    assert len(rollouts) == 0
    rollouts.add(rollout("a", [1]), 0.5)
    rollouts.add(rollout("b", [1]))
    assert rollouts.columns().reward.tolist() == pytest.approx([0.5, np.nan], nan_ok=True)


def test_a_record_that_contradicts_itself_is_refused_and_leaves_nothing_behind():
    rollouts = Rollouts([rollout("a", [1, 2])])
    with pytest.raises(ValueError, match=r"^token 1 of request 'b': KV epoch 1 is older than its policy epoch 2;"):
        rollouts.add(rollout("b", [1, 2], [1, 1]))
    rollouts.add(rollout("b", [3, 4]))
    assert list(rollouts) == ["a", "b"]
    assert consume(6, rollouts).per_rollout("policy").oldest.tolist() == [5, 3]


def test_a_later_rollout_does_not_change_what_was_consumed():
    rollouts = Rollouts(four())
    consumption = consume(6, rollouts)
    rollouts.add(rollout("later", [0] * 100))
    assert measure(consumption)["mean_policy_staleness"] == 3.25
    assert measure(consume(6, rollouts))["mean_policy_staleness"] == pytest.approx(3.8)  # (2 + 4 + 1 + 6 + 6) / 5


@pytest.mark.parametrize("bound", [1.5, True, "2"])
def test_a_bound_is_an_integer(bound):
    with pytest.raises(ValueError, match="^max_staleness must be an integer of 0 or more, got "):
        consume(6, [], max_staleness=bound)


def test_epochs_may_be_far_apart():
    """Epochs that are seconds since 1970: no bin for each second between them."""
    consumption = consume(1_800_000_005, [rollout("a", [3, 1_800_000_000]), rollout("b", [1_800_000_000])])
    assert consumption.histogram("policy") == {5: 2, 1_800_000_002: 1}
    assert consumption.histogram("attended_kv") == {}
