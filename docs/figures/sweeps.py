"""The recorded runs that pages on training show, and the commands that made them.

`python docs/figures/sweeps.py NAME...` runs the sweeps of these names, for minutes each on two cores, and writes what the
figures need of them to `docs/data/sweep-NAME.jsonl`: a run a line. `curves.py` draws them.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reference_impl.rl.sweep import Outcome, read, write

DATA = Path(__file__).parents[1] / "data"
ASYNC = "examples/recipes/grpo-tiny-megatron-async.yaml"
REFERENCE = "policy.generation.backend=reference policy.generation.mode=direct"
MCORE = "policy.generation.mcore_generation_config"

SWEEPS = {
    "sync": "examples/recipes/grpo-tiny-megatron-sync.yaml policy.generation.backend=megatron,reference grpo.seed=1,2,3",
    "async-megatron": f"{ASYNC} grpo.seed=1,2,3",
    "async-reference": f"{ASYNC} {REFERENCE} grpo.seed=1,2,3",
    "smollm2": "examples/recipes/grpo-smollm2-megatron.yaml grpo.async_grpo.enabled=false",
    "kv-mode": f"{ASYNC} policy.generation.max_new_tokens=24 policy.max_total_sequence_length=40 "
    f"{MCORE}.kv_cache_management_mode=persist,recompute,offload grpo.seed=1,2,3 grpo.max_num_steps=60",
    "lag": f"{ASYNC} {REFERENCE} grpo.async_grpo.max_trajectory_age_steps=0,1,2,4 grpo.seed=1,2,3",
}
"""Arguments of `genref sweep` by name."""

KEPT = (
    "reward",
    "token_mean_policy_staleness",
    "token_mean_kv_cache_staleness",
    "max_policy_staleness",
    "mean_completion_gap",
    "token_mult_prob_error",
    "generation_seconds",
    "waiting_seconds",
    "training_seconds",
    "refit_seconds",
)


def path_of(name: str) -> Path:
    """Where the runs of a sweep are kept."""
    return DATA / f"sweep-{name}.jsonl"


def kept(outcome: Outcome) -> Outcome:
    """What the figures need, to four digits; seconds from the end of the first step."""
    curves = {
        metric: [None if value is None else round(value, 4) for value in outcome.curve(metric)] for metric in KEPT
    }
    ended = [round(at - outcome.ended[0], 2) for at in outcome.ended]
    return replace(outcome, curves=curves, ended=ended, peak_gib=round(outcome.peak_gib, 2))


def record(name: str) -> None:
    """Run a sweep and keep its curves."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["genref", "sweep", *SWEEPS[name].split(), "--run-folder", f"{folder}/run"]
        subprocess.run(command, check=True)
        write([kept(outcome) for outcome in read(Path(folder, "run", "sweep.jsonl"))], path_of(name))


def main(names: Sequence[str]) -> None:
    for name in names:
        record(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
