"""The staleness metrics of other systems under their own names: what each means, how it differs from ours, its value.

The definitions were read from the sources named. `step` means what it does everywhere here: the number of the
checkpoint that is trained from, so that a rollout which that checkpoint sampled has staleness 0. Systems that number
their steps from 1 subtract 1 themselves and come to the same value. Megatron-RL's names are those of `metrics`;
`upstream` computes them on its own population.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from reference_impl.staleness import alias_values as v
from reference_impl.staleness.alias_values import Setup, Value, Values
from reference_impl.staleness.consumption import Consumption


@dataclass(frozen=True)
class Alias:
    """One metric of another system.

    `system`, `name`
    : Who logs it, and as what. Prefixes that come from a logger's set-up are left out.

    `unit`, `population`, `formula`
    : What one counts, what it is taken over, and how it is computed, with versions of weights as epochs.

    `difference`
    : Which of our metrics is the same, or what sets it apart from the nearest one.

    `source`
    : Repository and path of the definition.

    `value`
    : Computes it from a `Consumption`, and a `Setup` where there is one; NaN when there is nothing to compute it from.
      `None` for what staleness records cannot say; `difference` has the reason.
    """

    system: str
    name: str
    unit: str
    population: str
    formula: str
    difference: str
    source: str
    value: Callable[..., float] | None


NO_SETUP = Setup()
STEPS, SHARE, GROUPS, CHECKPOINT = "training steps", "share, 0 to 1", "prompt groups", "checkpoint"
WORDS = {"mean": "mean", "avg": "mean", "median": "median", "max": "largest", "min": "smallest"}
LOGPROBS = (
    "not computed: needs log-probabilities of generation and of training, which are no part of a staleness record"
)
DISPATCH = v.by_group(v.since_dispatch)


def _alias(
    system: str, name: str, unit: str, population: str, formula: str, difference: str, source: str, value: Value | None
) -> Alias:
    asked = None if value is None else lambda consumption, setup=NO_SETUP: value(consumption, setup)
    return Alias(system, name, unit, population, formula, difference, source, asked)


def _nemo_rl() -> list[Alias]:
    code = "NVIDIA-NeMo/RL nemo_rl/algorithms"
    age = _alias(
        "NeMo RL",
        "avg_trajectory_age",
        STEPS,
        "prompt groups of the step",
        "mean over groups of step - epoch when the group was dispatched",
        "mean_policy_staleness, but from the dispatch on and not from the oldest sampled token, so never below it with "
        "one rollout a group; a change of weights while it is generated does not show",
        f"{code}/async_utils/replay_buffer.py",
        v.over(DISPATCH, "mean"),
    )
    evicted = _alias(
        "NeMo RL",
        "evicted_stale_prompt_groups",
        GROUPS,
        "groups ready for the step",
        "those dropped as too old",
        "dropped_rollouts, in groups; there the bound is on the epoch at dispatch, here on the oldest sampled token",
        f"{code}/single_controller.py",
        v.groups_dropped,
    )
    aborted = _alias(
        "NeMo RL",
        "aborted_stale_inflight_groups",
        GROUPS,
        "groups that are generated while the weights change",
        "those cancelled as too old",
        "not computed: a cancelled group is never offered to a step, so no record of it is left",
        f"{code}/single_controller.py",
        None,
    )
    ratios = {
        "sampling_importance_ratio": ("ratio", "mean of exp(training - generation log-probability), after truncation"),
        "is_oob_ratio": (SHARE, "importance ratios outside the bounds / all of them"),
        "token_mult_prob_error": ("ratio, 1 or more", "mean of exp(|generation - training log-probability|)"),
        "gen_kl_error": ("nats", "mean of the estimated KL divergence between generation and training"),
    }
    losses = f"{code}/loss/loss_functions.py"
    return [age, evicted, aborted] + [
        _alias("NeMo RL", name, unit, "tokens that the loss counts", formula, LOGPROBS, losses, None)
        for name, (unit, formula) in ratios.items()
    ]


def _areal() -> list[Alias]:
    source, tokens = "areal-project/AReaL areal/trainer/ppo/actor.py", "trained tokens with a version, of a micro-batch"
    same = {
        "avg": "token_mean_policy_staleness",
        "max": "max_policy_staleness",
        "min": "min_policy_last_token_staleness",
    }
    found: list[Alias] = []
    for how, name in same.items():
        value = v.ours(name) if how == "avg" else v.over(v.of_tokens, how)
        for which, minuend, difference, computed in (
            (
                "theta",
                "step",
                f"same as {name}, if the step is one micro-batch; of several, theirs are averaged",
                value,
            ),
            ("proximal", "(step - 1)", f"1 less than sample_staleness_theta_{how}: -1 on policy", v.less_1(value)),
        ):
            formula = f"{WORDS[how]} over tokens of {minuend} - epoch"
            alias = f"sample_staleness_{which}_{how}"
            found.append(_alias("AReaL", alias, STEPS, tokens, formula, difference, source, computed))
    numbers: dict[str, tuple[str, str, str, Callable[[Consumption], float]]] = {
        "v_theta": (CHECKPOINT, "step", "same as the step", lambda c: c.step),
        "v_proximal": (CHECKPOINT, "step - 1", "the step less 1", lambda c: c.step - 1),
        "n_valid_generated_tokens": (
            "tokens",
            "their number",
            "consumed_tokens times policy_coverage, if the step is one micro-batch; of several, theirs are averaged",
            lambda c: c.per_rollout("policy").stamped.sum(),
        ),
    }
    return found + [
        _alias("AReaL", name, unit, tokens, formula, difference, source, v.alone(value))
        for name, (unit, formula, difference, value) in numbers.items()
    ]


def _pipeline_rl() -> list[Alias]:
    loop, later = "ServiceNow/PipelineRL pipelinerl/finetune_loop.py", "ServiceNow/PipelineRL pull request 152"
    apart = (
        "{how}_policy_staleness, but in samples (left out without samples_per_step) and from the dispatch on, not from "
        "the oldest sampled token"
    )
    lags = [
        _alias(
            "PipelineRL",
            f"stats/lag_{how}",
            "samples",
            "micro-batches of the step, each as old as its oldest sample",
            f"{WORDS[how]} over them of samples trained at the last broadcast - samples trained at dispatch",
            apart.format(how=how) + ("" if how == "max" else "; computed as if a micro-batch held one rollout"),
            later,
            v.over(v.in_samples, how),
        )
        for how in ("min", "mean", "max")
    ]
    lag = _alias(
        "PipelineRL",
        "stats/lag",
        "samples",
        "samples of the step",
        "largest of samples trained at the last broadcast - samples trained at dispatch",
        "the earlier name of stats/lag_max: " + apart.format(how="max"),
        loop,
        v.over(v.in_samples, "max"),
    )
    ess = _alias(
        "PipelineRL",
        "rl/ess",
        SHARE,
        "output tokens of the step",
        "(sum of importance ratios)^2 / sum of their squares / tokens",
        LOGPROBS,
        loop,
        None,
    )
    return [*lags, lag, ess]


def _prime_rl() -> list[Alias]:
    code = "PrimeIntellect-ai/prime-rl src/prime_rl/orchestrator"
    parts: dict[str, tuple[str, str, Values]] = {
        "": (
            "step - epoch at dispatch, at least 0",
            "{how}_policy_staleness, but from the dispatch on and not from the oldest sampled token, so never below it",
            v.total,
        ),
        "/in_flight": (
            "epoch at completion - epoch at dispatch, at least 0 and at most the whole",
            "the part that came while the episode was generated; we have no metric for it",
            v.in_flight,
        ),
        "/in_queue": ("step - epoch at completion, at least 0", "same as {how}_completion_gap", v.in_queue),
    }
    found = [
        _alias(
            "prime-rl",
            f"off_policy{part}/{how}",
            STEPS,
            "episodes of the step",
            f"{WORDS[how]} over episodes of {formula}",
            difference.format(how=how),
            f"{code}/utils.py",
            v.over(values, how),
        )
        for part, (formula, difference, values) in parts.items()
        for how in ("mean", "max")
    ]
    dropped = _alias(
        "prime-rl",
        "off_policy/dropped",
        "traces",
        "traces that waited for the step",
        "those dropped as too old",
        "same as dropped_rollouts, but there the bound is on the epoch at dispatch, here on the oldest sampled token",
        f"{code}/train_sink.py",
        v.ours("dropped_rollouts"),
    )
    return [*found, dropped]


def _verl() -> list[Alias]:
    kinds: dict[str, tuple[str, str, Values]] = {
        "trajectory_spans": (
            "epoch of the last call - epoch of the first + 1",
            "how many epochs a rollout may span; mixed_policy_ratio tells how many rollouts span more than one",
            v.spans,
        ),
        "trajectory_staleness": (
            "step - epoch of the last call",
            "same as {how}_completion_gap. Here staleness is that of the newest token, in Megatron-RL of the oldest",
            v.last_call,
        ),
        "trajectory_staleness_worst": (
            "step - epoch of the first call",
            "same as {how}_policy_staleness, unless the first call was aborted before it sampled a token",
            v.first_call,
        ),
    }
    for_want = ". For want of the epochs at admission and completion, those of the oldest and the last token are taken"
    return [
        _alias(
            "verl",
            f"training/off_policy/{kind}/{how}",
            "epochs" if kind == "trajectory_spans" else STEPS,
            "trajectories of the step",
            f"{WORDS[how]} over trajectories of {formula}, where step is global_steps - 1",
            difference.format(how=how) + for_want,
            "verl-project/verl verl/trainer/ppo/v1/trainer_base.py",
            v.over(values, how),
        )
        for kind, (formula, difference, values) in kinds.items()
        for how in ("mean", "max", "min")
    ]


def _skyrl() -> list[Alias]:
    apart = "from the dispatch of the group on and not from the oldest sampled token"
    rows: dict[str, tuple[str, str, str, Value]] = {
        f"async/staleness_{how}": (
            STEPS,
            f"{WORDS[how]} over groups of step - step when the group was dispatched",
            f"{how}_policy_staleness, but {apart}",
            v.over(DISPATCH, how),
        )
        for how in ("mean", "max", "min")
    }
    rows["async/staleness_ratio"] = (
        SHARE,
        "groups with a staleness above 0 / groups",
        f"we have no metric for it; {apart}",
        v.share_above_0(DISPATCH),
    )
    rows["async/staleness_violation_count"] = (
        GROUPS,
        "groups above max_staleness, which are trained on all the same",
        f"over_bound_rollouts under the policy keep, in groups, but {apart}; left out without max_staleness",
        v.number_above_bound(DISPATCH),
    )
    source = "NovaSky-AI/SkyRL skyrl/train/fully_async_trainer.py"
    return [
        _alias("SkyRL", name, unit, "prompt groups of the step", formula, difference, source, value)
        for name, (unit, formula, difference, value) in rows.items()
    ]


def _miles() -> list[Alias]:
    code = "radixark/miles miles"
    ages = {
        "avg": "same as mean_policy_staleness with one rollout a group and nothing dropped; otherwise a group is as "
        "old as its oldest rollout, and what was dropped counts too",
        "max": "same as max_policy_staleness, if nothing was dropped",
    }
    found = [
        _alias(
            "miles",
            f"rollout/fully_async/{how}_staleness",
            STEPS,
            "groups taken from the buffer, those then dropped as too old among them",
            f"{WORDS[how]} over groups of step - oldest epoch in the group",
            difference,
            f"{code}/rollout/fully_async_data_buffer.py",
            v.over(v.with_dropped(v.by_group(v.oldest)), how),
        )
        for how, difference in ages.items()
    ]
    versions = {
        "mean": "mean_policy_staleness",
        "median": "the median of policy staleness, which we do not log",
        "max": "min_policy_staleness",
        "min": "max_policy_staleness",
    }
    found += [
        _alias(
            "miles",
            f"rollout/weight_version/{how}",
            CHECKPOINT,
            "samples of the step with a version",
            f"{WORDS[how]} over samples of the sample's oldest epoch",
            f"a checkpoint and no age: the step less {less}",
            f"{code}/ray/rollout/metrics.py",
            v.over(v.oldest_epoch, how),
        )
        for how, less in versions.items()
    ]
    mixed = _alias(
        "miles",
        "rollout/weight_version/mixed_version_ratio",
        SHARE,
        "samples of the step",
        "samples with two epochs or more / samples",
        "same as mixed_policy_ratio, if each sample has a version; here those without one count below the line too",
        f"{code}/ray/rollout/metrics.py",
        v.mixed_of_all,
    )
    return [*found, mixed]


ALIASES: tuple[Alias, ...] = (
    *_nemo_rl(),
    *_areal(),
    *_pipeline_rl(),
    *_prime_rl(),
    *_verl(),
    *_skyrl(),
    *_miles(),
)
"""All of them, system by system."""

SYSTEMS: tuple[str, ...] = tuple(dict.fromkeys(alias.system for alias in ALIASES))


def aliases_of(system: str) -> tuple[Alias, ...]:
    """The metrics of one of `SYSTEMS`. Raises `ValueError` for another."""
    if system not in SYSTEMS:
        near = difflib.get_close_matches(system, SYSTEMS, 1, 0.3)
        nearest = f"; nearest: {near[0]!r}" if near else ""
        raise ValueError(f"system: expected one of {', '.join(SYSTEMS)}, got {system!r}{nearest}")
    return tuple(alias for alias in ALIASES if alias.system == system)


def measure_as(
    system: str,
    consumption: Consumption,
    *,
    groups: Mapping[int | str, Hashable] | None = None,
    samples_per_step: float | None = None,
    max_staleness: int | None = None,
) -> dict[str, float]:
    """What `system`, one of `SYSTEMS`, would log for this step, under its names.

    The other arguments are those of `Setup`. What has no value, or cannot be computed from staleness records, is left
    out.
    """
    setup = Setup(groups or {}, samples_per_step, max_staleness)
    found = {alias.name: alias.value(consumption, setup) for alias in aliases_of(system) if alias.value is not None}
    return {name: value for name, value in found.items() if not np.isnan(value)}
