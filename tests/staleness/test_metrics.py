"""The registry of metrics: complete, worded, and equal to loops over lists that hold an entry for every token."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import METRICS, measure
from reference_impl.staleness.records import RequestRecord

# As Megatron-RL's training log spells them.
MEGATRON_RL = {
    *(f"{how}_{kind}_staleness" for how in ("mean", "max", "min") for kind in ("policy", "kv_cache")),
    *(f"{how}_{kind}_last_token_staleness" for how in ("mean", "max", "min") for kind in ("policy", "kv_cache")),
    "total_eviction_count",
    "max_num_evictions",
    "mean_completion_gap",
}


def test_every_metric_is_in_the_registry_once_with_words_for_all_of_it():
    assert len(METRICS) == 41  # 3 kinds x (6 of rollouts + 2 of tokens), mixed, 3 gaps, 5 sums of counts, 8 counts
    for name, metric in METRICS.items():
        assert metric.name == name
        for text in (metric.name, metric.unit, metric.population, metric.formula, metric.source):
            assert text and text.strip() == text and "\n" not in text, name
        assert callable(metric.value)


def test_the_metrics_marked_as_megatrons_are_those_that_it_logs():
    assert {name for name, metric in METRICS.items() if metric.source == "Megatron-RL"} == MEGATRON_RL
    assert {metric.source for metric in METRICS.values()} == {"Megatron-RL", "ours"}


def test_no_two_metrics_say_that_they_are_computed_alike():
    told = [(metric.formula, metric.population) for metric in METRICS.values()]
    assert len(set(told)) == len(told)


def test_what_is_measured_is_in_the_registrys_order_and_has_no_nan():
    record = RequestRecord("a", EpochRuns.missing(2), EpochRuns.missing(2), EpochRuns.missing(2), ((0, 2),))
    values = measure(consume(3, [record]))
    assert list(values) == [name for name in METRICS if name in values]
    assert not any(map(math.isnan, values.values()))
    assert values["policy_coverage"] == 0
    assert not {name for name in values if name.endswith("_staleness")}


# --- an oracle --------------------------------------------------------------------------------------------------------

COUNTS = ("num_evictions", "num_preemptions", "num_recomputes", "prefix_cached_tokens")


@st.composite
def rollouts(draw):
    """One rollout as lists with an entry a token, and the record of it. `None` is what nobody knows."""
    maybe = st.integers(0, 9) | st.none()
    policy, newest = [], draw(st.integers(0, 6))
    for _ in range(draw(st.integers(0, 7))):
        newest = min(9, newest + draw(st.sampled_from([0, 0, 0, 1, 2])))
        policy.append(draw(st.sampled_from([newest, newest, newest, None])))
    kv = [draw(maybe) for _ in policy]
    attended = [None if epoch is None else draw(st.integers(0, epoch) | st.none()) for epoch in policy]
    sampled = [draw(st.booleans()) for _ in policy]
    facts = {
        "policy": [epoch for epoch, is_sampled in zip(policy, sampled, strict=True) if is_sampled],
        "kv_cache": [epoch for epoch, is_sampled in zip(kv, sampled, strict=True) if is_sampled],
        "attended_kv": [epoch for epoch, is_sampled in zip(attended, sampled, strict=True) if is_sampled],
        "completion_epoch": draw(maybe),
        "status": draw(st.sampled_from(["finished", "finished", "aborted", "failed"])),
        # None excuses KV that is older than its policy, so that any KV epochs will do.
        **{name: draw(st.integers(0, 3) | st.none()) for name in COUNTS[:3]},
        "prefix_cached_tokens": draw(st.sampled_from([None, len(policy), 9])),
    }
    if facts["num_evictions"] == facts["num_recomputes"] == facts["prefix_cached_tokens"] == 0:
        facts["num_evictions"] = 1  # for the same reason
    spans = tuple((token, token + 1) for token, is_sampled in enumerate(sampled) if is_sampled)
    rest = {name: facts[name] for name in (*COUNTS, "completion_epoch", "status")}
    runs = [EpochRuns.from_tokens(epochs) for epochs in (policy, kv, attended)]
    return facts, lambda name: RequestRecord(name, *runs, spans, **rest)


def naively(step, offered, bound, when_older):
    """Every metric, by loops over lists."""
    usable = [facts for facts in offered if facts["status"] != "failed" and facts["policy"]]

    def ages(facts, kind):
        return [step - epoch for epoch in facts[kind] if epoch is not None]

    def mean(values):
        return sum(values) / len(values) if values else math.nan

    reductions = {
        "mean": mean,
        "max": lambda values: max(values, default=math.nan),
        "min": lambda values: min(values, default=math.nan),
    }
    old = [facts for facts in usable if bound is not None and max(ages(facts, "policy"), default=-1) > bound]
    dropped = old if when_older == "drop" else []
    consumed = [facts for facts in usable if not any(facts is other for other in dropped)]
    found = {}
    for kind in ("policy", "kv_cache", "attended_kv"):
        oldest = [max(ages(facts, kind)) for facts in consumed if ages(facts, kind)]
        last = [step - facts[kind][-1] for facts in consumed if facts[kind][-1] is not None]
        tokens = [age for facts in consumed for age in ages(facts, kind)]
        for how, reduce in reductions.items():
            found[f"{how}_{kind}_staleness"] = reduce(oldest)
            found[f"{how}_{kind}_last_token_staleness"] = reduce(last)
        found[f"token_mean_{kind}_staleness"] = mean(tokens)
        found[f"{kind}_coverage"] = mean([epoch is not None for facts in consumed for epoch in facts[kind]])
    found["mixed_policy_ratio"] = mean(
        [len(set(ages(facts, "policy"))) > 1 for facts in consumed if ages(facts, "policy")]
    )
    gaps = [step - facts["completion_epoch"] for facts in consumed if facts["completion_epoch"] is not None]
    for how, reduce in reductions.items():
        found[f"{how}_completion_gap"] = reduce(gaps)
    for name, metric in {
        "num_evictions": "total_eviction_count",
        "num_preemptions": "total_preemption_count",
        "num_recomputes": "total_recompute_count",
        "prefix_cached_tokens": "total_prefix_cached_tokens",
    }.items():
        known = [facts[name] for facts in consumed if facts[name] is not None]
        found[metric] = sum(known) if known else math.nan
        if name == "num_evictions":
            found["max_num_evictions"] = max(known, default=math.nan)
    found["consumed_rollouts"] = len(consumed)
    found["consumed_tokens"] = sum(len(facts["policy"]) for facts in consumed)
    found["failed_rollouts"] = sum(facts["status"] == "failed" for facts in offered)
    found["empty_rollouts"] = sum(facts["status"] != "failed" and not facts["policy"] for facts in offered)
    found["over_bound_rollouts"], found["dropped_rollouts"] = len(old), len(dropped)
    found["mean_dropped_length"] = mean([len(facts["policy"]) for facts in dropped])
    found["mean_consumed_length"] = mean([len(facts["policy"]) for facts in consumed])
    return found


@settings(max_examples=300)
@given(
    st.lists(rollouts(), max_size=6),
    st.integers(9, 14),
    st.none() | st.integers(0, 8),
    st.sampled_from(["keep", "drop"]),
)
def test_every_metric_is_what_loops_over_tokens_give(drawn, step, bound, when_older):
    records = [record(number) for number, (_, record) in enumerate(drawn)]
    consumption = consume(step, records, max_staleness=bound, when_older=when_older)
    expected = naively(step, [facts for facts, _ in drawn], bound, when_older)
    assert expected.keys() == METRICS.keys()
    assert measure(consumption) == pytest.approx({name: x for name, x in expected.items() if not math.isnan(x)})


@settings(max_examples=200)
@given(st.lists(rollouts(), min_size=1, max_size=5), st.integers(9, 12))
def test_means_deviations_and_histograms_of_rollouts_are_those_of_their_tokens(drawn, step):
    consumption = consume(step, [record(number) for number, (_, record) in enumerate(drawn)])
    usable = [facts for facts, _ in drawn if facts["status"] != "failed" and facts["policy"]]
    for kind in ("policy", "kv_cache", "attended_kv"):
        ages = [[step - epoch for epoch in facts[kind] if epoch is not None] for facts in usable]
        found = consumption.per_rollout(kind)
        assert found.stamped.tolist() == [len(of) for of in ages]
        nothing = math.nan
        assert found.mean.tolist() == pytest.approx(
            [statistics.mean(of) if of else nothing for of in ages], nan_ok=True
        )
        assert found.std.tolist() == pytest.approx(
            [statistics.pstdev(of) if of else nothing for of in ages], nan_ok=True, abs=1e-9
        )
        every = [age for of in ages for age in of]
        assert consumption.histogram(kind) == {age: every.count(age) for age in sorted(set(every))}
