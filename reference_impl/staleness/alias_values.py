"""What other systems' metrics are computed from: their staleness of each rollout or group, out of a `Consumption`.

Arrays are float64, an entry a rollout or a group, NaN where the records do not say.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from reference_impl.staleness.consumption import Consumption
from reference_impl.staleness.epochs import MISSING
from reference_impl.staleness.metrics import METRICS


@dataclass(frozen=True)
class Setup:
    """What some definitions need besides the records.

    `groups`
    : Which group (of one prompt) each rollout belongs to, by the rollout's name. One that is not named is a group by
      itself.

    `samples_per_step`
    : Rollouts in a training step, for systems that count versions in samples.

    `max_staleness`
    : The bound that is set, for systems that count what is trained on in spite of it.
    """

    groups: Mapping[int | str, Hashable] = field(default_factory=dict)
    samples_per_step: float | None = None
    max_staleness: int | None = None


type Values = Callable[[Consumption, Setup], np.ndarray]
type Value = Callable[[Consumption, Setup], float]

REDUCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "avg": np.mean,
    "median": np.median,
    "max": np.max,
    "min": np.min,
}


def over(values: Values, how: str) -> Value:
    """A reduction, by its name, over what is known of `values`; NaN when nothing is."""
    return _of_known(values, lambda known, _: REDUCTIONS[how](known))


def ours(name: str) -> Value:
    """Our metric of this name."""
    return lambda consumption, _: METRICS[name].value(consumption)


def alone(value: Callable[[Consumption], float]) -> Value:
    """A value that needs no set-up."""
    return lambda consumption, _: float(value(consumption))


def less_1(value: Value) -> Value:
    """One less: counted from the checkpoint before."""
    return lambda consumption, setup: value(consumption, setup) - 1


def _of_known(values: Values, value: Callable[[np.ndarray, Setup], float]) -> Value:
    def of_known(consumption: Consumption, setup: Setup) -> float:
        found = values(consumption, setup)
        known = found[~np.isnan(found)]
        return float(value(known, setup)) if known.size else np.nan

    return of_known


# --- of each rollout -------------------------------------------------------------------------------------------------


def since_dispatch(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Step - epoch at admission."""
    return consumption.step - _epochs(consumption, "admission_epoch")


def oldest(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Step - policy epoch of the oldest sampled token."""
    return consumption.per_rollout("policy").oldest


def oldest_epoch(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Policy epoch of the oldest sampled token."""
    return consumption.step - oldest(consumption, setup)


def first_call(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Step - epoch at admission, or where that is not known, the oldest sampled token's."""
    known = since_dispatch(consumption, setup)
    return np.where(np.isnan(known), oldest(consumption, setup), known)


def last_call(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Step - epoch at completion, or where that is not known, that of the token sampled last."""
    known = consumption.completion_gap
    return np.where(np.isnan(known), consumption.per_rollout("policy").last, known)


def spans(consumption: Consumption, setup: Setup) -> np.ndarray:
    """How many versions there are from the first call to the last."""
    return first_call(consumption, setup) - last_call(consumption, setup) + 1


def total(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Step - epoch at admission, at least 0."""
    return np.maximum(0, since_dispatch(consumption, setup))


def in_flight(consumption: Consumption, setup: Setup) -> np.ndarray:
    """The share of `total` that came while the rollout was generated."""
    grown = _epochs(consumption, "completion_epoch") - _epochs(consumption, "admission_epoch")
    return np.minimum(total(consumption, setup), np.maximum(0, grown))


def in_queue(consumption: Consumption, setup: Setup) -> np.ndarray:
    """The rest of `total`, which came while it waited."""
    return total(consumption, setup) - in_flight(consumption, setup)


def in_samples(consumption: Consumption, setup: Setup) -> np.ndarray:
    """`since_dispatch` in samples; not known without their number a step."""
    scale = np.nan if setup.samples_per_step is None else setup.samples_per_step
    return since_dispatch(consumption, setup) * scale


def _epochs(consumption: Consumption, column: str) -> np.ndarray:
    epochs = getattr(consumption.columns, column)[consumption.rollouts]
    return np.where(epochs == MISSING, np.nan, epochs)


# --- of each group, or of tokens -------------------------------------------------------------------------------------


def by_group(values: Values) -> Values:
    """Of each group: the largest value of its rollouts, for a group is as old as its oldest."""

    def largest(consumption: Consumption, setup: Setup) -> np.ndarray:
        found: dict[Hashable, float] = {}
        groups = _groups(consumption, setup, consumption.rollouts)
        for group, value in zip(groups, values(consumption, setup).tolist(), strict=True):
            found[group] = float(np.fmax(found.get(group, np.nan), value))
        return np.array(list(found.values()), np.float64)

    return largest


def with_dropped(values: Values) -> Values:
    """As if what was dropped as too old had been consumed too."""

    def of_all(consumption: Consumption, setup: Setup) -> np.ndarray:
        rollouts = np.union1d(consumption.rollouts, consumption.dropped)
        return values(replace(consumption, rollouts=rollouts), setup)

    return of_all


def of_tokens(consumption: Consumption, setup: Setup) -> np.ndarray:
    """Every policy staleness that some sampled token has, each once."""
    return np.array(list(consumption.histogram("policy")), np.float64)


def groups_dropped(consumption: Consumption, setup: Setup) -> float:
    """How many groups something was dropped of."""
    return float(len(set(_groups(consumption, setup, consumption.dropped))))


def share_above_0(values: Values) -> Value:
    """The share of `values` that is not on policy."""
    return _of_known(values, lambda known, _: (known > 0).mean())


def number_above_bound(values: Values) -> Value:
    """How many of `values` are above the bound; NaN without one."""

    def number(known: np.ndarray, setup: Setup) -> float:
        return np.nan if setup.max_staleness is None else float((known > setup.max_staleness).sum())

    return _of_known(values, number)


def mixed_of_all(consumption: Consumption, setup: Setup) -> float:
    """Rollouts whose tokens carry two policy epochs or more, divided by all rollouts."""
    policy = consumption.per_rollout("policy")
    return float((policy.std > 0).mean()) if (policy.stamped > 0).any() else np.nan


def _groups(consumption: Consumption, setup: Setup, rollouts: np.ndarray) -> list[Hashable]:
    names = [consumption.names[number] for number in rollouts]
    # A group may have the name of a rollout that is a group by itself.
    return [("group", setup.groups[name]) if name in setup.groups else ("rollout", name) for name in names]
