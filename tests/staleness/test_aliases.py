"""Other systems' names: each system's numbers worked out by hand, and what is said to be the same is the same."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_impl.staleness.aliases import ALIASES, SYSTEMS, aliases_of, measure_as
from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import METRICS
from reference_impl.staleness.records import RequestRecord

MEAN_MAX, MEAN_MAX_MIN = ("mean", "max"), ("mean", "max", "min")
NAMES = {
    "NeMo RL": {
        "avg_trajectory_age",
        "evicted_stale_prompt_groups",
        "aborted_stale_inflight_groups",
        "sampling_importance_ratio",
        "is_oob_ratio",
        "token_mult_prob_error",
        "gen_kl_error",
    },
    "AReaL": {
        *(f"sample_staleness_{which}_{how}" for which in ("proximal", "theta") for how in ("avg", "max", "min")),
        "v_theta",
        "v_proximal",
        "n_valid_generated_tokens",
    },
    "PipelineRL": {"stats/lag_min", "stats/lag_mean", "stats/lag_max", "stats/lag", "rl/ess"},
    "prime-rl": {
        *(f"off_policy{part}/{how}" for part in ("", "/in_flight", "/in_queue") for how in MEAN_MAX),
        "off_policy/dropped",
    },
    "verl": {
        f"training/off_policy/{kind}/{how}"
        for kind in ("trajectory_spans", "trajectory_staleness", "trajectory_staleness_worst")
        for how in MEAN_MAX_MIN
    },
    "SkyRL": {
        *(f"async/staleness_{how}" for how in MEAN_MAX_MIN),
        "async/staleness_ratio",
        "async/staleness_violation_count",
    },
    "miles": {
        "rollout/fully_async/avg_staleness",
        "rollout/fully_async/max_staleness",
        *(f"rollout/weight_version/{how}" for how in (*MEAN_MAX_MIN, "median")),
        "rollout/weight_version/mixed_version_ratio",
    },
}


def rollout(name, *epochs, came=None, ended=None, status="finished"):
    """A rollout whose tokens, all sampled, have these policy epochs."""
    runs = EpochRuns.from_tokens(list(epochs))
    unknown = EpochRuns.missing(len(epochs))
    return RequestRecord(
        name, runs, unknown, unknown, ((0, len(epochs)),), admission_epoch=came, completion_epoch=ended, status=status
    )


def test_every_name_is_there_once():
    assert {system: {alias.name for alias in aliases_of(system)} for system in SYSTEMS} == NAMES
    assert len({(alias.system, alias.name) for alias in ALIASES}) == len(ALIASES)


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: f"{alias.system} {alias.name}")
def test_every_alias_has_words_for_all_of_it(alias):
    for text in (alias.unit, alias.population, alias.formula, alias.difference):
        assert text and text.strip() == text and "\n" not in text
    assert re.fullmatch(r"[\w.-]+/[\w.-]+ (\S+\.py|pull request \d+)", alias.source)
    assert (alias.value is None) == alias.difference.startswith("not computed: ")


def test_all_metrics_that_are_named_as_ours_are_ours():
    for alias in ALIASES:
        for name in re.findall(r"\b(?:mean|max|min|token_mean)_\w+|\w+_rollouts\b|\w+_coverage\b", alias.difference):
            assert name in METRICS or name == "max_staleness", (alias.name, name)


# --- each system's numbers --------------------------------------------------------------------------------------------


def test_nemo_rl_counts_from_the_dispatch_of_a_group():
    """Groups dispatched at 3, 5 and 5, at step 6: (3 + 1 + 1) / 3. That the first went on at 5 does not show."""
    offered = [rollout("a", 3, 5, came=3), rollout("b", 5, came=5), rollout("c", 5, came=5)]
    assert measure_as("NeMo RL", consume(6, offered)) == {
        "avg_trajectory_age": pytest.approx(5 / 3),
        "evicted_stale_prompt_groups": 0,
    }
    # Two rollouts of the first group weigh as one: still 5 / 3, and not (3 + 3 + 1 + 1) / 4.
    offered.append(rollout("a2", 4, came=3))
    groups = {"a": 0, "a2": 0, "b": 1, "c": 2}
    assert measure_as("NeMo RL", consume(6, offered), groups=groups)["avg_trajectory_age"] == pytest.approx(5 / 3)
    assert measure_as("NeMo RL", consume(6, offered))["avg_trajectory_age"] == 2
    dropping = consume(6, offered, max_staleness=1, when_older="drop")
    assert measure_as("NeMo RL", dropping, groups=groups)["evicted_stale_prompt_groups"] == 1
    assert measure_as("NeMo RL", dropping)["evicted_stale_prompt_groups"] == 2


def test_a_rollout_that_is_named_in_no_group_is_one_by_itself():
    offered = [rollout("a", 3, came=3), rollout("b", 4, came=4), rollout("c", 5, came=5)]
    # Groups {a, b} and {c}, whatever they are called: (3 + 1) / 2.
    assert measure_as("NeMo RL", consume(6, offered), groups={"a": "c", "b": "c"})["avg_trajectory_age"] == 2


def test_areal_counts_tokens_from_the_current_checkpoint_and_from_the_one_before():
    """Versions 3, 3, 5, 5, 5 at 6: ages 3, 3, 1, 1, 1."""
    assert measure_as("AReaL", consume(6, [rollout("a", 3, 3, 5, 5, 5)])) == pytest.approx(
        {
            "sample_staleness_theta_avg": 1.8,
            "sample_staleness_theta_max": 3,
            "sample_staleness_theta_min": 1,
            "sample_staleness_proximal_avg": 0.8,
            "sample_staleness_proximal_max": 2,
            "sample_staleness_proximal_min": 0,
            "v_theta": 6,
            "v_proximal": 5,
            "n_valid_generated_tokens": 5,
        }
    )


def test_areals_proximal_staleness_is_minus_1_on_policy():
    values = measure_as("AReaL", consume(6, [rollout("a", 6, 6, None)]))
    assert values["sample_staleness_theta_max"] == 0
    assert values["sample_staleness_proximal_max"] == values["sample_staleness_proximal_min"] == -1
    assert values["n_valid_generated_tokens"] == 2


def test_pipeline_rl_counts_samples():
    """64 samples a step: last broadcast after 640, dispatched after 512, 576 and 576, so 128, 64 and 64 behind."""
    consumption = consume(10, [rollout("a", 8, 9, came=8), rollout("b", 9, came=9), rollout("c", 10, came=9)])
    assert measure_as("PipelineRL", consumption, samples_per_step=64) == {
        "stats/lag_min": 64,
        "stats/lag_mean": pytest.approx(256 / 3),
        "stats/lag_max": 128,
        "stats/lag": 128,
    }
    assert measure_as("PipelineRL", consumption) == {}


def test_prime_rl_parts_what_came_in_flight_from_what_came_in_the_queue():
    """Dispatched at 3, done at 5, trained from checkpoint 6: 3 in all, 2 in flight, 1 in the queue."""
    offered = [rollout("a", 4, 5, came=3, ended=5), rollout("b", 6, came=6, ended=6), rollout("c", 5)]
    assert measure_as("prime-rl", consume(6, offered)) == {
        "off_policy/mean": 1.5,
        "off_policy/max": 3,
        "off_policy/in_flight/mean": 1,
        "off_policy/in_flight/max": 2,
        "off_policy/in_queue/mean": 0.5,
        "off_policy/in_queue/max": 1,
        "off_policy/dropped": 0,
    }
    dropping = consume(6, offered, max_staleness=1, when_older="drop")
    assert measure_as("prime-rl", dropping)["off_policy/dropped"] == 1


def test_verls_staleness_is_the_newest_tokens():
    """Versions 3 to 5, trained from checkpoint 6, which verl calls step 7."""
    expected = {"trajectory_spans": 3, "trajectory_staleness": 1, "trajectory_staleness_worst": 3}
    every = {f"training/off_policy/{kind}/{how}": value for kind, value in expected.items() for how in MEAN_MAX_MIN}
    assert measure_as("verl", consume(6, [rollout("a", 3, 5, came=3, ended=5)])) == every
    assert measure_as("verl", consume(6, [rollout("a", 3, 4, 5)])) == every  # for want of more, from the tokens
    # What verl itself knows of a trajectory: two versions, and no token's.
    assert measure_as("verl", consume(6, [rollout("a", None, None, came=3, ended=5)])) == every


def test_skyrl_counts_from_the_dispatch_of_a_group_and_trains_on_what_is_over_the_bound():
    """Scheduled at 4, 6 and 7, at step 7: 3, 1 and 0."""
    consumption = consume(7, [rollout("a", 6, came=4), rollout("b", 6, came=6), rollout("c", 7, came=7)])
    assert measure_as("SkyRL", consumption, max_staleness=2) == {
        "async/staleness_mean": pytest.approx(4 / 3),
        "async/staleness_max": 3,
        "async/staleness_min": 0,
        "async/staleness_ratio": pytest.approx(2 / 3),
        "async/staleness_violation_count": 1,
    }
    assert measure_as("SkyRL", consumption, max_staleness=3)["async/staleness_violation_count"] == 0
    assert "async/staleness_violation_count" not in measure_as("SkyRL", consumption)


def test_miles_takes_the_oldest_of_a_group_and_logs_versions_too():
    """A group of two samples with versions 3, 5 and 5, at 6."""
    consumption = consume(6, [rollout("a", 3, 5), rollout("b", 5)])
    assert measure_as("miles", consumption, groups={"a": 0, "b": 0}) == {
        "rollout/fully_async/avg_staleness": 3,
        "rollout/fully_async/max_staleness": 3,
        "rollout/weight_version/mean": 4,
        "rollout/weight_version/median": 4,
        "rollout/weight_version/max": 5,
        "rollout/weight_version/min": 3,
        "rollout/weight_version/mixed_version_ratio": 0.5,
    }
    assert measure_as("miles", consumption)["rollout/fully_async/avg_staleness"] == 2  # each a group by itself


def test_miles_counts_the_age_of_what_it_then_drops_and_samples_without_a_version():
    offered = [rollout("a", 1), rollout("b", 4, 5), rollout("c", None)]
    values = measure_as("miles", consume(6, offered, max_staleness=3, when_older="drop"))
    assert values["rollout/fully_async/avg_staleness"] == 3.5  # 5 and 2
    assert values["rollout/fully_async/max_staleness"] == 5
    assert values["rollout/weight_version/min"] == 4
    assert values["rollout/weight_version/mixed_version_ratio"] == 0.5  # of b and c
    assert METRICS["mixed_policy_ratio"].value(consume(6, offered[1:])) == 1  # of b


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_step_without_a_usable_rollout_has_no_staleness(system):
    values = measure_as(system, consume(6, [rollout("a", 1, came=1, ended=1, status="failed")]), samples_per_step=8)
    counts = {
        "AReaL": {"v_theta": 6, "v_proximal": 5, "n_valid_generated_tokens": 0},
        "NeMo RL": {"evicted_stale_prompt_groups": 0},
        "prime-rl": {"off_policy/dropped": 0},
    }
    assert values == counts.get(system, {})


def test_another_system_is_refused_with_the_nearest_name():
    with pytest.raises(
        ValueError, match=r"^system: expected one of NeMo RL, .*, miles, got 'Prime'; nearest: 'prime-rl'$"
    ):
        measure_as("Prime", consume(6, []))


def test_an_alias_computes_its_value_from_a_consumption_alone():
    consumption = consume(6, [rollout("a", 3, 5, came=3, ended=5)])
    values = {alias.name: alias.value(consumption) for alias in ALIASES if alias.value is not None}
    assert values["off_policy/in_flight/max"] == 2
    assert {name for name, value in values.items() if math.isnan(value)} == {
        "stats/lag",
        "stats/lag_min",
        "stats/lag_mean",
        "stats/lag_max",
        "async/staleness_violation_count",
    }


@st.composite
def whole_rollouts(draw):
    """A rollout of which everything is known, admitted when its first token is sampled."""
    epochs = sorted(draw(st.lists(st.integers(0, 6), min_size=1, max_size=6)))
    return epochs, draw(st.integers(epochs[-1], 7))


@given(st.lists(whole_rollouts(), min_size=1, max_size=6), st.integers(7, 9))
def test_what_is_said_to_be_the_same_is_the_same(drawn, step):
    offered = [rollout(i, *epochs, came=epochs[0], ended=ended) for i, (epochs, ended) in enumerate(drawn)]
    consumption = consume(step, offered)
    compared = 0
    for alias in ALIASES:
        same = re.match(r"same as (\w+)", alias.difference)
        if same and same[1] in METRICS:
            assert alias.value(consumption) == pytest.approx(METRICS[same[1]].value(consumption)), alias.name
            compared += 1
    assert compared == 15  # AReaL 3, prime-rl 3, verl 6, miles 3
