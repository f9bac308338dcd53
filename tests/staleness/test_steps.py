"""What is logged of a step: every cell worked out by hand, and Megatron-RL's formulas as the oracle for any step."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.staleness_records import four_rollouts, record

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.logger import StalenessLogger
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.rollouts import Rollouts
from reference_impl.staleness.steps import ROLLOUT_COLUMNS, Histogram, StepLog, Table, step_log


def logged(step: int, records, **options) -> StepLog:
    return step_log(consume(step, records, **options))


def counts(histogram: Histogram) -> dict[float, int]:
    return dict(zip(histogram.values.tolist(), histogram.counts.tolist(), strict=True))


def as_dicts(table: Table) -> list[dict]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


# --- scalars --------------------------------------------------------------------------------------------------------


def test_oldest_tokens_of_policy_4_2_5_0_and_kv_4_3_5_1_consumed_at_step_6():
    scalars = logged(6, four_rollouts()).scalars
    assert scalars["mean_policy_staleness"] == 3.25  # 2, 4, 1, 6
    assert (scalars["max_policy_staleness"], scalars["min_policy_staleness"]) == (6, 1)
    assert scalars["mean_kv_cache_staleness"] == 2.75  # 2, 3, 1, 5


@pytest.mark.parametrize(("step", "gap"), [(7, 1.5), (9, 3.5)])
def test_completed_at_epochs_5_and_6(step: int, gap: float):
    records = [record("a", [(5, 1)], completion_epoch=5), record("b", [(5, 1)], completion_epoch=6)]
    assert logged(step, records).scalars["mean_completion_gap"] == gap


def megatron_rl(step: int, rollouts: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]]) -> dict[str, float]:
    """Megatron-RL's metrics from each rollout's policy and KV epochs, lists of (epoch, token_count)."""
    found: dict[str, float] = {}
    for kind, rows in (
        ("policy", [policy for policy, _ in rollouts]),
        ("kv_cache", [kv for _, kv in rollouts]),
    ):
        oldest = [step - row[0][0] for row in rows]
        newest = [step - row[-1][0] for row in rows]
        for name, values in ((f"{kind}_staleness", oldest), (f"{kind}_last_token_staleness", newest)):
            found |= {f"mean_{name}": np.mean(values), f"max_{name}": max(values), f"min_{name}": min(values)}
    return found


def weighted(step: int, row: list[tuple[int, int]]) -> tuple[float, float]:
    """Megatron-RL's average and deviation of one rollout's staleness."""
    total = sum(tokens for _, tokens in row)
    mean = step - sum(epoch * tokens for epoch, tokens in row) / total
    return mean, (sum(tokens * (step - epoch - mean) ** 2 for epoch, tokens in row) / total) ** 0.5


def per_token(table: Table) -> list[tuple]:
    """The compressed table, one row a token."""
    return [row[:3] + row[4:] for row in table.rows for _ in range(row[3])]


@st.composite
def rising_epochs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Policy and KV epochs of some tokens; neither falls, and the KV is never older than the policy."""
    tokens = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8))
    policy = list(itertools.accumulate((grows for grows, _ in tokens), initial=draw(st.integers(0, 3))))[1:]
    kv = list(itertools.accumulate((p + more for p, (_, more) in zip(policy, tokens, strict=True)), max))
    return policy, kv


def as_runs(values: list[int]) -> list[tuple[int, int]]:
    return [(value, len(list(group))) for value, group in itertools.groupby(values)]


@given(st.lists(rising_epochs(), min_size=1, max_size=5), st.integers(25, 30))
def test_megatron_rls_formulas(rollouts: list[tuple[list[int], list[int]]], step: int):
    rows = [(as_runs(policy), as_runs(kv)) for policy, kv in rollouts]
    log = logged(step, [record(number, policy, kv) for number, (policy, kv) in enumerate(rows)])
    expected = megatron_rl(step, rows)
    assert {name: log.scalars[name] for name in expected} == pytest.approx(expected)
    for row, (policy, kv) in zip(as_dicts(log.rollout_table), rows, strict=True):
        assert (row["policy_avg_staleness"], row["policy_staleness_std"]) == pytest.approx(weighted(step, policy))
        assert (row["kv_avg_staleness"], row["kv_staleness_std"]) == pytest.approx(weighted(step, kv))
    tokens = [
        (number, step - p, step - k, None)
        for number, (policy, kv) in enumerate(rollouts)
        for p, k in zip(policy, kv, strict=True)
    ]
    assert per_token(log.per_token_table) == tokens
    assert len(log.per_token_table.rows) == len(list(itertools.groupby(tokens)))  # as few rows as can be


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_rollout_table_cell_by_cell():
    rollouts = Rollouts()
    for one, reward in zip(four_rollouts(), (1.0, None, -0.5, 0.0), strict=True):
        rollouts.add(one, reward)
    log = logged(6, rollouts)
    assert log.rollout_table.columns == (
        "rollout",
        *("reward", "traj_length", "num_evictions", "policy_staleness", "kv_staleness"),
        *("policy_last_token_staleness", "kv_last_token_staleness", "policy_avg_staleness", "kv_avg_staleness"),
        *("policy_staleness_std", "kv_staleness_std", "rollout_status"),
        *("attended_kv_staleness", "num_preemptions", "num_recomputes", "prefix_cached_tokens", "completion_gap"),
    )
    # Staleness of a's tokens: policy 2 2 2 1, KV 2 2 1 1; of b's: 4 4 3 3 and 3 3 3 3; of d's: 6 6 2 2 and 5 5 2 2.
    assert log.rollout_table.rows == [
        ("a", 1.0, 6, 1, 2, 2, 1, 1, 1.75, 1.5, 0.1875**0.5, 0.5, "finished", 2, 0, 0, 0, 1),
        ("b", None, 7, 0, 4, 3, 3, 3, 3.5, 3.0, 0.5, 0.0, "finished", 4, 2, 0, 0, 0),
        ("c", -0.5, 8, 0, 1, 1, 1, 1, 1.0, 1.0, 0.0, 0.0, "finished", 1, 0, 3, 0, 0),
        ("d", 0.0, 9, 0, 6, 5, 2, 2, 4.0, 3.5, 2.0, 1.5, "aborted", 6, 0, 0, 0, 1),
    ]


def test_the_per_token_table_cell_by_cell():
    log = logged(6, four_rollouts())
    assert log.per_token_table.columns == (
        *("rollout", "policy_staleness", "kv_staleness", "token_count"),
        "attended_kv_staleness",
    )
    assert log.per_token_table.rows == [
        ("a", 2, 2, 2, 2),
        ("a", 2, 1, 1, 2),
        ("a", 1, 1, 1, 2),
        ("b", 4, 3, 2, 4),
        ("b", 3, 3, 2, 4),
        ("c", 1, 1, 4, 1),
        ("d", 6, 5, 2, 6),
        ("d", 2, 2, 2, 6),
    ]


def test_what_is_not_known_is_none_and_never_0_or_minus_1():
    unknown = dict.fromkeys(("num_evictions", "num_preemptions", "num_recomputes", "prefix_cached_tokens"))
    log = logged(3, [record("a", [(None, 2), (1, 1)], [(None, 3)], **unknown)])
    (row,) = as_dicts(log.rollout_table)
    known = {"rollout": "a", "traj_length": 5, "rollout_status": "finished"}
    policy = {"policy_staleness": 2, "policy_last_token_staleness": 2}
    averages = {"policy_avg_staleness": 2.0, "policy_staleness_std": 0.0}
    assert row == dict.fromkeys(ROLLOUT_COLUMNS) | known | policy | averages
    assert log.per_token_table.rows == [("a", None, None, 2, None), ("a", 2, None, 1, None)]


def test_a_last_token_without_a_stamp_has_no_last_staleness():
    (row,) = as_dicts(logged(3, [record("a", [(1, 1), (None, 1)])]).rollout_table)
    assert (row["policy_staleness"], row["policy_last_token_staleness"]) == (2, None)


def test_equal_neighbours_of_two_turns_are_one_row_and_those_of_two_rollouts_are_two():
    runs = EpochRuns.from_boundaries([(0, 1)], 8)
    # A prompt of 2, 2 sampled, a tool's answer of 2, and 2 sampled.
    turns = RequestRecord("turns", runs, runs, EpochRuns.missing(8), ((2, 4), (6, 8)))
    log = logged(2, [turns, record("next", [(1, 3)])])
    assert log.per_token_table.rows == [("turns", 1, 1, 4, None), ("next", 1, 1, 3, None)]


def test_only_what_is_consumed_is_in_the_tables():
    records = [
        *four_rollouts(),
        record("failed", [(5, 4)], status="failed"),
        record("empty", []),
    ]
    log = logged(6, records, max_staleness=4, when_older="drop")  # leaves out d, whose age is 6
    assert [row[0] for row in log.rollout_table.rows] == ["a", "b", "c"]
    assert {row[0] for row in log.per_token_table.rows} == {"a", "b", "c"}


def test_cells_are_plain_python_whatever_the_engine_counts_with():
    log = logged(6, [record(np.int64(7), [(5, 1)], completion_epoch=5), *four_rollouts()])
    rows = [*log.rollout_table.rows, *log.per_token_table.rows]
    assert {type(cell) for row in rows for cell in row} == {int, float, str, type(None)}
    assert [row[0] for row in log.rollout_table.rows] == [7, "a", "b", "c", "d"]


def test_rows_are_made_when_they_are_asked_for_and_once():
    asked = []
    table = Table(("rollout",), lambda: asked.append("rows") or [("a",)])
    log = dataclasses.replace(logged(6, four_rollouts()), rollout_table=table, per_token_table=table)
    assert asked == []
    assert log.tables()["rollout_table"].rows == log.rollout_table.rows == [("a",)]
    assert asked == ["rows"]


# --- histograms -----------------------------------------------------------------------------------------------------


def test_the_histograms_value_by_value():
    histograms = logged(6, four_rollouts()).histograms
    assert {name: counts(histogram) for name, histogram in histograms.items()} == {
        "rollout_avg_policy_staleness_hist": {1.0: 1, 1.75: 1, 3.5: 1, 4.0: 1},
        "rollout_avg_kv_staleness_hist": {1.0: 1, 1.5: 1, 3.0: 1, 3.5: 1},
        "rollout_avg_attended_kv_staleness_hist": {1.0: 1, 2.0: 1, 4.0: 1, 6.0: 1},
        "token_policy_staleness_hist": {1: 5, 2: 5, 3: 2, 4: 2, 6: 2},
        "token_kv_cache_staleness_hist": {1: 6, 2: 4, 3: 4, 5: 2},
        "token_attended_kv_staleness_hist": {1: 4, 2: 4, 4: 4, 6: 4},
        "completion_gap_hist": {0: 2, 1: 2},
        "consumed_length_hist": {4: 4},
    }


def test_the_lengths_of_what_a_bound_leaves_out_are_beside_those_of_what_is_trained_on():
    records = [record("old", [(0, 9)]), record("young", [(5, 3)]), record("younger", [(6, 3)])]
    histograms = logged(6, records, max_staleness=2, when_older="drop").histograms
    assert counts(histograms["dropped_length_hist"]) == {9: 1}
    assert counts(histograms["consumed_length_hist"]) == {3: 2}


def test_a_histogram_with_nothing_in_it_is_left_out():
    histograms = logged(6, [record("a", [(None, 2)])]).histograms  # no epoch of any kind is known
    assert list(histograms) == ["consumed_length_hist"]


def test_an_integer_has_a_bin_of_its_own():
    edges, binned = Histogram(np.array([1, 4]), np.array([3, 2])).bins()
    assert edges.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    assert binned.tolist() == [3, 0, 0, 2]


def test_more_integers_than_bins_share_them():
    edges, binned = Histogram(np.array([0, 1, 1023]), np.array([5, 6, 7])).bins()  # 1024 integers, two a bin
    assert (len(binned), edges[0], edges[1], edges[-1]) == (512, -0.5, 1.5, 1023.5)
    assert (binned[0], binned[-1], binned.sum()) == (11, 7, 18)


def test_averages_have_64_bins_and_one_average_has_one():
    edges, binned = Histogram(np.array([1.0, 1.5, 2.0]), np.array([1, 2, 4])).bins()
    assert (len(binned), edges[0], edges[-1]) == (64, 1.0, 2.0)
    assert {int(at): int(binned[at]) for at in np.flatnonzero(binned)} == {0: 1, 32: 2, 63: 4}
    edges, binned = Histogram(np.array([2.25]), np.array([3])).bins()
    assert (edges.tolist(), binned.tolist()) == ([1.75, 2.75], [3])


# --- steps without anything to say ----------------------------------------------------------------------------------


def test_a_step_with_failed_rollouts_only_has_counts_and_no_staleness():
    log = logged(6, [record("a", [(4, 2)], status="failed"), record("b", [], status="failed")])
    assert log.scalars["failed_rollouts"] == 2
    assert log.scalars["consumed_rollouts"] == 0
    assert not [name for name in log.scalars if "staleness" in name or "gap" in name or "coverage" in name]
    assert (log.histograms, log.tables()) == ({}, {})
    assert (log.rollout_table.rows, log.per_token_table.rows) == ([], [])


@pytest.mark.parametrize("records", [[], [record("a", [(None, 2)], [(None, 2)])], four_rollouts()])
def test_nothing_is_nan(records: list[RequestRecord]):
    log = logged(6, records)
    cells = [cell for table in log.tables().values() for row in table.rows for cell in row]
    json.dumps([log.scalars, cells], allow_nan=False)
    assert not any(np.isnan(histogram.values).any() for histogram in log.histograms.values())


# --- the call in a training loop ------------------------------------------------------------------------------------


class Kept:
    """A sink that keeps what it gets."""

    name = "kept"

    def __init__(self) -> None:
        self.logs: list[StepLog] = []
        self.closed = 0

    def write(self, log: StepLog) -> None:
        self.logs.append(log)

    def close(self) -> None:
        self.closed += 1


def test_one_call_consumes_logs_and_returns_what_to_train_on():
    kept = Kept()
    with StalenessLogger([kept]) as logger:
        consumption = logger.log_step(
            6, iter(four_rollouts()), rewards={"b": 0.5, "a": 1.0}, max_staleness=4, when_older="drop"
        )
    assert [consumption.names[number] for number in consumption.rollouts] == ["a", "b", "c"]
    (log,) = kept.logs
    assert (log.step, log.scalars["dropped_rollouts"], kept.closed) == (6, 1, 1)
    assert [row["reward"] for row in as_dicts(log.rollout_table)] == [1.0, 0.5, None]


def test_a_step_that_waits_is_logged_when_it_no_longer_does():
    kept = Kept()
    logger = StalenessLogger([kept])
    late = record("late", [(1, 2)])
    options = {"max_staleness": 5, "when_older": "wait"}
    assert logger.log_step(6, four_rollouts(), in_flight=[late], **options).waiting_for == ("late",)  # 7 - 1 > 5
    assert kept.logs == []
    logger.log_step(6, [*four_rollouts(), late], **options)
    assert [log.scalars["consumed_rollouts"] for log in kept.logs] == [4]  # without d, whose age is 6


def test_wrong_records_are_the_callers_business():
    kept = Kept()
    logger = StalenessLogger([kept])
    with pytest.raises(ValueError, match="step 4 is older than the policy epoch 5"):
        logger.log_step(4, [record("a", [(5, 1)])])
    with pytest.raises(ValueError, match="rewards: no record of request 'z'"):
        logger.log_step(6, four_rollouts(), rewards={"a": 1.0, "z": 1.0})
    with pytest.raises(ValueError, match="rewards: a Rollouts has its own"):
        logger.log_step(6, Rollouts(four_rollouts()), rewards={"a": 1.0})
    assert kept.logs == []


def test_a_rollouts_brings_its_rewards():
    kept = Kept()
    rollouts = Rollouts()
    rollouts.add(record("a", [(5, 1)]), 2.5)
    StalenessLogger([kept]).log_step(6, rollouts)
    assert as_dicts(kept.logs[0].rollout_table)[0]["reward"] == 2.5
