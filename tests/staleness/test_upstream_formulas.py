"""Megatron-RL's statistics on its own population: its answers to the cases where ours differ, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import METRICS, measure
from reference_impl.staleness.records import RequestRecord, merge_turns
from reference_impl.staleness.upstream import stamped_tokens, upstream_metrics


def turn(policy, length, prompt, kv=None, **rest):
    """A turn with these stamped boundaries, the same for the KV cache if not given."""
    return RequestRecord(
        request="t",
        policy_epoch=EpochRuns.from_boundaries(policy, length),
        kv_cache_epoch=EpochRuns.from_boundaries(policy if kv is None else kv, length),
        oldest_attended_kv_epoch=EpochRuns.missing(length),
        sampled=((prompt, length),),
        **rest,
    )


def test_the_worked_example():
    """Epochs 4, 2, 5, 0 at step 6: staleness 2, 4, 1, 6. Where all tokens are sampled by one epoch, both agree."""
    rollouts = [[turn([(0, epoch)], 3, 1)] for epoch in (4, 2, 5, 0)]
    values = upstream_metrics(6, rollouts)
    assert (values["mean_policy_staleness"], values["max_policy_staleness"], values["min_policy_staleness"]) == (
        3.25,
        6,
        1,
    )
    ours = measure(consume(6, [RequestRecord(**{**vars(turn), "request": i}) for i, (turn,) in enumerate(rollouts)]))
    for name in ("mean_policy_staleness", "max_kv_cache_staleness", "min_policy_last_token_staleness"):
        assert values[name] == ours[name]


def test_the_oldest_token_is_the_prompts_first():
    """Admitted at 3, the weights change to 5 before the first token: a boundary at the prompt's last token."""
    record = turn([(0, 3), (3, 5)], 9, 4)
    assert upstream_metrics(6, [[record]])["mean_policy_staleness"] == 3
    assert measure(consume(6, [record]))["mean_policy_staleness"] == 1
    # (3 * 3 + 6 * 1) / 9 over all tokens, 1 over the sampled ones.
    assert upstream_metrics(6, [[record]])["token_mean_policy_staleness"] == pytest.approx(15 / 9)
    assert measure(consume(6, [record]))["token_mean_policy_staleness"] == 1


def test_a_boundary_past_the_end_lengthens_the_run_before_it_and_fills_the_gap():
    """A stop string of 2 tokens was cut: 8 tokens are left, and the stamp at 9 with them."""
    assert stamped_tokens([(0, 5), (9, 6)], 8) == [(5, 9)]
    assert stamped_tokens([(0, 5), (6, 6)], 8) == [(5, 6), (6, 2)]
    record = turn([(0, 5), (9, 6)], 8, 4, completion_epoch=6)
    assert record.length == 8
    assert measure(consume(7, [record]))["consumed_tokens"] == 4
    assert upstream_metrics(7, [[record]])["mean_completion_gap"] == 1
    assert upstream_metrics(7, [[record]])["mean_policy_last_token_staleness"] == 2


def test_two_boundaries_at_one_token_leave_nothing_between():
    assert stamped_tokens([(0, 3), (4, 4), (4, 5)], 6) == [(3, 4), (5, 2)]
    assert stamped_tokens([], 0) == []


def test_turns_are_counted_in_full_each():
    """10 tokens at epoch 0, then all 16 at epoch 3: 26 tokens for a trajectory of 16."""
    turns = [turn([(0, 0)], 10, 4), turn([(0, 3)], 16, 10)]
    values = upstream_metrics(6, [turns])
    assert values["consumed_tokens"] == 26
    assert values["token_mean_policy_staleness"] == pytest.approx((10 * 6 + 16 * 3) / 26)  # 4.1538
    assert (values["mean_policy_staleness"], values["mean_policy_last_token_staleness"]) == (6, 3)
    merged = merge_turns(turns)
    assert merged.length == 16
    ours = measure(consume(6, [merged]))
    assert ours["consumed_tokens"] == 12  # 6 of each turn were sampled
    assert ours["token_mean_policy_staleness"] == (6 * 6 + 6 * 3) / 12


def test_turns_of_4_and_7_tokens_at_7():
    """Each token once: 4 at 5 and 3 at 6, 11 / 7. Counted a turn: 8 at 5 and 3 at 6, 19 / 11."""
    turns = [turn([(0, 5)], 4, 0), turn([(0, 5), (4, 6)], 7, 4)]
    values, ours = upstream_metrics(7, [turns]), measure(consume(7, [merge_turns(turns)]))
    assert f"{values['token_mean_policy_staleness']:.4f}" == "1.7273"
    assert f"{ours['token_mean_policy_staleness']:.4f}" == "1.5714"


@pytest.mark.parametrize(("step", "gap"), [(7, 1.5), (9, 3.5)])
def test_the_completion_gap_is_a_mean_over_turns(step, gap):
    """The last epochs of a rollout's two turns are 5 and 6. Over rollouts it ended at 6."""
    turns = [turn([(0, 5)], 4, 1, completion_epoch=5), turn([(0, 5), (4, 6)], 7, 4, completion_epoch=6)]
    assert upstream_metrics(step, [turns])["mean_completion_gap"] == gap
    assert measure(consume(step, [merge_turns(turns)]))["mean_completion_gap"] == step - 6
    # Another rollout of one turn weighs as much as each of the two: over three turns, over two rollouts.
    other = turn([(0, 2)], 3, 1, completion_epoch=2)
    assert upstream_metrics(step, [turns, [other]])["mean_completion_gap"] == pytest.approx(step - 13 / 3)


def test_evictions_are_summed_over_turns():
    turns = [turn([(0, 5)], 4, 1, num_evictions=1), turn([(0, 5)], 7, 4, num_evictions=2)]
    values = upstream_metrics(7, [turns, [turn([(0, 5)], 4, 1)]])
    assert (values["total_eviction_count"], values["max_num_evictions"]) == (3, 3)
    unknown = upstream_metrics(7, [[turn([(0, 5)], 4, 1, num_evictions=None)]])
    assert not {"total_eviction_count", "max_num_evictions"} & unknown.keys()


def test_failed_rollouts_join_nothing_and_a_step_of_them_logs_nothing():
    assert upstream_metrics(7, []) == upstream_metrics(7, [[], []]) == {}
    one = [turn([(0, 5)], 4, 1)]
    assert upstream_metrics(7, [[], one, []]) == upstream_metrics(7, [one])


def test_the_names_are_those_of_our_metrics():
    values = upstream_metrics(7, [[turn([(0, 5)], 4, 1)]])
    assert values.keys() <= METRICS.keys()
    assert {name for name, metric in METRICS.items() if metric.source == "Megatron-RL"} <= values.keys()


def test_a_token_without_a_stamp_and_a_step_from_the_past_are_refused():
    with pytest.raises(
        ValueError, match="^token 2 of request 't' has no kv_cache_epoch; Megatron-RL stamps every token$"
    ):
        upstream_metrics(7, [[turn([(0, 5)], 4, 1, kv=[(0, 5), (2, None)])]])
    with pytest.raises(ValueError, match="^step 4 is older than policy_epoch 5 of token 2 of request 't'$"):
        upstream_metrics(4, [[turn([(0, 4), (2, 5)], 4, 1)]])
    with pytest.raises(ValueError, match="^request 't' has no token"):
        upstream_metrics(4, [[turn([], 0, 0)]])


@st.composite
def trajectories(draw):
    """The epochs of each token of each turn, policy and KV, every turn at least as long as the one before."""
    turns, length = [], 0
    for _ in range(draw(st.integers(1, 3))):
        length += draw(st.integers(1, 5))
        policy = sorted(draw(st.lists(st.integers(0, 6), min_size=length, max_size=length)))
        kv = sorted(draw(st.lists(st.integers(0, 6), min_size=length, max_size=length)))
        turns.append((policy, kv))
    return turns


@given(st.lists(trajectories(), min_size=1, max_size=4), st.integers(6, 9))
def test_all_of_it_is_what_loops_over_tokens_give(drawn, step):
    def records(turns):
        for policy, kv in turns:
            runs = [EpochRuns.from_tokens(epochs) for epochs in (policy, kv, [None] * len(policy))]
            yield RequestRecord("t", *runs, ((0, len(policy)),))

    values = upstream_metrics(step, [list(records(turns)) for turns in drawn])
    for place, kind in enumerate(("policy", "kv_cache")):
        oldest = [step - turns[0][place][0] for turns in drawn]
        last = [step - turns[-1][place][-1] for turns in drawn]
        tokens = [step - epoch for turns in drawn for turn in turns for epoch in turn[place]]
        assert values[f"mean_{kind}_staleness"] == pytest.approx(sum(oldest) / len(oldest))
        assert values[f"max_{kind}_staleness"] == max(oldest)
        assert values[f"min_{kind}_staleness"] == min(oldest)
        assert values[f"mean_{kind}_last_token_staleness"] == pytest.approx(sum(last) / len(last))
        assert values[f"max_{kind}_last_token_staleness"] == max(last)
        assert values[f"min_{kind}_last_token_staleness"] == min(last)
        assert values[f"token_mean_{kind}_staleness"] == pytest.approx(sum(tokens) / len(tokens))
        assert values["consumed_tokens"] == len(tokens)
    gaps = [step - turn[0][-1] for turns in drawn for turn in turns]
    assert values["mean_completion_gap"] == pytest.approx(sum(gaps) / len(gaps))
    assert not any(map(math.isnan, values.values()))
