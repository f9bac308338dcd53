"""Every metric of a training step in one registry: its name, unit, population, formula and source, and its value.

The names and definitions marked Megatron-RL are those of its training log, so that a dashboard made for it shows the same
curves; the others are ours. The docs' table is made from this registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reference_impl.staleness.consumption import KINDS, Consumption
from reference_impl.staleness.epochs import MISSING

MEGATRON, OURS = "Megatron-RL", "ours"


@dataclass(frozen=True)
class Metric:
    """One number a step.

    `name`, `unit`, `population`, `formula`
    : As it is logged; what one counts; what it is taken over; how it is computed, in one line.

    `source`
    : Who defined it: `Megatron-RL` or `ours`.

    `value`
    : Computes it; NaN when there is nothing to compute it from.
    """

    name: str
    unit: str
    population: str
    formula: str
    source: str
    value: Callable[[Consumption], float]


REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {"mean": np.mean, "max": np.max, "min": np.min}
WORDS = {"mean": "mean", "max": "largest", "min": "smallest"}
SUBJECT = {"policy": "policy_epoch", "kv_cache": "kv_cache_epoch", "attended_kv": "oldest_attended_kv_epoch"}


def _reduced(values: np.ndarray, how: str) -> float:
    """A reduction over what is known of `values`; NaN when nothing is."""
    known = values[~np.isnan(values)]
    return float(REDUCTIONS[how](known)) if known.size else np.nan


def _staleness_metrics(kind: str, how: str) -> list[Metric]:
    source = OURS if kind == "attended_kv" else MEGATRON
    population = f"consumed rollouts with {SUBJECT[kind]}"
    return [
        Metric(
            f"{how}_{kind}_staleness",
            "training steps",
            population,
            f"{WORDS[how]} over rollouts of step - {SUBJECT[kind]} of the rollout's oldest sampled token",
            source,
            lambda consumption: _reduced(consumption.per_rollout(kind).oldest, how),
        ),
        Metric(
            f"{how}_{kind}_last_token_staleness",
            "training steps",
            population,
            f"{WORDS[how]} over rollouts of step - {SUBJECT[kind]} of the token sampled last",
            source,
            lambda consumption: _reduced(consumption.per_rollout(kind).last, how),
        ),
    ]


def _token_mean(consumption: Consumption, kind: str) -> float:
    staleness, tokens = consumption.staleness(kind), consumption.tokens
    known = staleness != MISSING
    total = tokens[known].sum()
    return float(staleness[known] @ tokens[known] / total) if total else np.nan


def _coverage(consumption: Consumption, kind: str) -> float:
    tokens = int(consumption.tokens.sum())
    return float(consumption.per_rollout(kind).stamped.sum()) / tokens if tokens else np.nan


def _token_metrics(kind: str) -> list[Metric]:
    return [
        Metric(
            f"token_mean_{kind}_staleness",
            "training steps",
            f"sampled tokens with {SUBJECT[kind]}, over all consumed rollouts",
            f"mean over tokens of step - {SUBJECT[kind]}",
            OURS,
            lambda consumption: _token_mean(consumption, kind),
        ),
        Metric(
            f"{kind}_coverage",
            "share, 0 to 1",
            "sampled tokens of consumed rollouts",
            f"tokens with {SUBJECT[kind]} / tokens",
            OURS,
            lambda consumption: _coverage(consumption, kind),
        ),
    ]


def _known(consumption: Consumption, column: str) -> np.ndarray:
    values = getattr(consumption.columns, column)[consumption.rollouts]
    return values[values != MISSING]


def _total(name: str, column: str, what: str, source: str, unit: str = "events") -> Metric:
    def value(consumption: Consumption) -> float:
        known = _known(consumption, column)
        return float(known.sum()) if known.size else np.nan

    return Metric(name, unit, f"consumed rollouts with a known {column}", f"sum of {what}", source, value)


def _max_evictions(consumption: Consumption) -> float:
    known = _known(consumption, "num_evictions")
    return float(known.max()) if known.size else np.nan


def _gap(how: str) -> Metric:
    return Metric(
        f"{how}_completion_gap",
        "training steps",
        "consumed rollouts with a known epoch at completion",
        f"{WORDS[how]} over rollouts of step - epoch when the request finished",
        MEGATRON if how == "mean" else OURS,
        lambda consumption: _reduced(consumption.completion_gap, how),
    )


def _mixed(consumption: Consumption) -> float:
    """The share of rollouts whose sampled tokens carry two policy epochs or more."""
    policy = consumption.per_rollout("policy")
    known = policy.stamped > 0
    return float((policy.std[known] > 0).mean()) if known.any() else np.nan


def _counts() -> list[Metric]:
    offered = "rollouts offered to the step"
    return [
        Metric("consumed_rollouts", "rollouts", offered, "those trained on", OURS, lambda c: float(len(c.rollouts))),
        Metric("consumed_tokens", "tokens", "sampled tokens of consumed rollouts", "their number", OURS, _tokens),
        Metric(
            "failed_rollouts", "rollouts", offered, "those whose generation failed", OURS, lambda c: float(c.failed)
        ),
        Metric("empty_rollouts", "rollouts", offered, "those without a sampled token", OURS, lambda c: float(c.empty)),
        Metric(
            "over_bound_rollouts",
            "rollouts",
            offered,
            "those whose oldest sampled token is staler than max_staleness",
            OURS,
            lambda c: float(len(c.over_bound)),
        ),
        Metric(
            "dropped_rollouts",
            "rollouts",
            offered,
            "those over the bound that were left out",
            OURS,
            lambda c: float(len(c.dropped)),
        ),
        Metric(
            "mean_dropped_length",
            "tokens",
            "dropped rollouts",
            "mean of sampled tokens",
            OURS,
            lambda c: _reduced(c.lengths(c.dropped).astype(float), "mean"),
        ),
        Metric(
            "mean_consumed_length",
            "tokens",
            "consumed rollouts",
            "mean of sampled tokens",
            OURS,
            lambda c: _reduced(c.lengths(c.rollouts).astype(float), "mean"),
        ),
    ]


def _tokens(consumption: Consumption) -> float:
    return float(consumption.tokens.sum())


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        *(metric for kind in KINDS for how in REDUCTIONS for metric in _staleness_metrics(kind, how)),
        *(metric for kind in KINDS for metric in _token_metrics(kind)),
        Metric(
            "mixed_policy_ratio",
            "share, 0 to 1",
            "consumed rollouts with a policy_epoch",
            "rollouts whose sampled tokens carry two policy epochs or more / rollouts",
            OURS,
            _mixed,
        ),
        *(_gap(how) for how in REDUCTIONS),
        _total("total_eviction_count", "num_evictions", "evictions", MEGATRON),
        Metric(
            "max_num_evictions",
            "events",
            "consumed rollouts with a known num_evictions",
            "largest number of evictions of one rollout",
            MEGATRON,
            _max_evictions,
        ),
        _total("total_preemption_count", "num_preemptions", "pauses that kept the blocks", OURS),
        _total("total_recompute_count", "num_recomputes", "caches dropped by a suspend", OURS),
        _total(
            "total_prefix_cached_tokens",
            "prefix_cached_tokens",
            "tokens whose keys and values came from other requests' blocks",
            OURS,
            "tokens",
        ),
        *_counts(),
    ]
}
"""All metrics by name, in the order in which they are shown."""


def measure(consumption: Consumption) -> dict[str, float]:
    """Every metric that has a value, in the registry's order.

    A step without a usable rollout logs its counts and no staleness: what is not known is left out, never 0.
    """
    values = {name: metric.value(consumption) for name, metric in METRICS.items()}
    return {name: value for name, value in values.items() if not np.isnan(value)}
