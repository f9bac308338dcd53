"""`genref train`: a policy is trained by a recipe, and next to its reward stands how stale each token was that it learnt from."""

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream
from reference_impl.cli.streams import INTERRUPTED
from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from reference_impl.config.schema import Recipe
    from reference_impl.rl.queue import Counts
    from reference_impl.rl.steps import StepDone
    from reference_impl.staleness.logger import StalenessLogger
    from reference_impl.staleness.runs import Run

MOST_DRAWN = 16
"""Rollouts of a run whose tokens its report draws one by one."""

SMOKE = (
    "policy.model_name=tiny",
    "policy.precision=auto",
    "policy.max_total_sequence_length=256",
    "policy.train_global_batch_size=null",
    "policy.megatron_cfg.tensor_model_parallel_size=1",
    "policy.megatron_cfg.pipeline_model_parallel_size=1",
    "policy.generation.max_new_tokens=8",
    "policy.generation.mcore_generation_config.buffer_size_gb=0.02",
    "policy.generation.mcore_generation_config.block_size_tokens=16",
    "policy.generation.mcore_generation_config.max_tokens=1024",
    "policy.generation.mcore_generation_config.max_requests=32",
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=2",
)
"""What `--smoke` makes of a recipe: the smallest model and batch, two steps, one rank; all else stays as it is written."""


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe (YAML), or the folder of a run, which then goes on.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value, +key=value.")] = None,
    run_folder: Annotated[
        Path | None, typer.Option(help="Where everything goes. Default: runs/train-DATE-TIME.")
    ] = None,
    sinks: Annotated[
        str,
        typer.Option(metavar="A,B,...", help="Tools that each step is logged to: tensorboard, wandb, mlflow, json."),
    ] = "",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Two steps of the recipe with the smallest model, to see that it runs.")
    ] = False,
) -> None:
    """Train a policy by a recipe, and log its reward and the staleness of what it learns from."""
    quiet_upstream()
    made, folder = read(recipe, overrides or [], run_folder, smoke)

    from reference_impl.rl.assembly import check

    check(made)  # before the imports that take seconds
    from reference_impl.cli.session import interrupt_held, open_folder
    from reference_impl.rl.run import train as steps

    folder = open_folder("train", folder)
    interrupted, reasons, counts = False, Counter[str](), None
    with open_logger(folder, sinks) as logger, interrupt_held() as stop:
        try:
            for done in steps(made, folder, logger, stop):
                print(line_of(done), flush=True)
                reasons.update(rollout.reason for rollout in (*done.rollouts, *done.dropped) if rollout.reason)
                counts = done.counts or counts
            interrupted = stop.is_set()
        except KeyboardInterrupt:
            interrupted = True
        write_report(folder)
    for reason, times in reasons.most_common(5):
        print(f"failed: {times} x {reason}")
    if counts:
        print(accounts(counts))
    print(f"run:    {folder}")
    if interrupted:
        print(f"genref: interrupted; genref train {folder} goes on from its newest checkpoint", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def read(recipe: Path, overrides: list[str], run_folder: Path | None, smoke: bool) -> "tuple[Recipe, Path | None]":
    """The recipe and the folder of the run; the argument may be a folder, which has its recipe."""
    from reference_impl.config.loader import load_recipe

    name = "recipe.yaml"
    if not recipe.is_dir():
        if run_folder is not None and (run_folder / name).exists():
            raise ConfigError(f"--run-folder: {run_folder} has a run; genref train {run_folder} goes on with it")
        if run_folder is not None and (old := run_folder / "run.jsonl").exists() and old.stat().st_size:
            raise ConfigError(f"--run-folder: {run_folder} has what another command generated; name another folder")
        return load_recipe(recipe, [*overrides, *smoke_overrides(recipe, overrides, smoke)]), run_folder
    if run_folder is not None:
        raise ConfigError(f"--run-folder: {run_folder}, but {recipe} is a run already, and goes on where it is")
    if not (recipe / name).is_file():
        raise ConfigError(f"{recipe}: no run to go on with, it has no {name}")
    return load_recipe(recipe / name, overrides), recipe


def open_logger(folder: Path, sinks: str) -> "StalenessLogger":
    """What logs to the tools that `sinks` names, with commas between them."""
    from reference_impl.staleness.logger import StalenessLogger, open_sinks

    try:
        return StalenessLogger(open_sinks(folder, filter(None, sinks.split(","))))
    except (ValueError, ModuleNotFoundError) as error:
        raise ConfigError(f"--sinks: {error}") from error


def smoke_overrides(recipe: Path, overrides: list[str], smoke: bool) -> list[str]:
    """What makes a smoke test of a recipe; one that names no environment gets the smallest."""
    if not smoke:
        return []
    from reference_impl.config.loader import load_recipe

    written = load_recipe(recipe, overrides)
    environment = [] if written.env.name else ["env.name=sort-letters"]
    shown = ["grpo.demonstration_steps=2"] if written.grpo.demonstration_steps else []
    return [*SMOKE, *environment, *shown]


def line_of(done: "StepDone") -> str:
    """One step in a line."""
    metrics = done.metrics
    if "reward" not in metrics:
        return f"step {done.step:>4}  nothing trained: all {len(done.rollouts)} rollouts failed"
    seconds = sum(value for name, value in metrics.items() if name.endswith("_seconds"))
    parts = [
        f"reward {metrics['reward']:.3f}",
        f"staleness {metrics.get('token_mean_policy_staleness', float('nan')):.2f}",
        f"oldest {metrics.get('max_policy_staleness', float('nan')):.0f}",
        f"KV {metrics.get('token_mean_kv_cache_staleness', float('nan')):.2f}",
        f"gap {metrics.get('mean_completion_gap', float('nan')):.2f}",
        f"prob error {metrics['token_mult_prob_error']:.3f}",
        f"{metrics['consumed_tokens'] / seconds:,.0f} tokens/s",
    ]
    parts += [f"{done.consumption.failed} failed"] if done.consumption.failed else []
    parts += [f"{len(done.dropped)} dropped"] if done.dropped else []
    parts += ["not finite, skipped"] if metrics["skipped"] else []
    return f"step {done.step:>4}  " + "  ".join(parts)


def accounts(counts: "Counts") -> str:
    """Where every rollout is that was started."""
    parts = {name: number for name, number in vars(counts).items() if name != "started" and number}
    return f"{counts.started:,} rollouts: " + ", ".join(
        f"{number:,} {name.replace('_', ' ')}" for name, number in parts.items()
    )


def shown(run: "Run") -> list[int]:
    """Rollouts of the last step that trained on any, whose tokens the page draws: those of several checkpoints first."""
    for step in reversed(run.steps):
        found = [run.sequences[index] for index in step.consumed if run.sequences[index].has_epochs]
        if found:
            several = sorted(found, key=lambda sequence: -len(sequence.generated_policy.runs))
            return [sequence.index for sequence in several[:MOST_DRAWN]]
    return [sequence.index for sequence in run.sequences[:MOST_DRAWN]]


def write_report(folder: Path) -> None:
    """The page about a run, as far as it has come; nothing where it has not come to a rollout."""
    from reference_impl.staleness.report.page import write_html
    from reference_impl.staleness.runs import read_run

    try:
        run = read_run(folder)
    except ValueError:
        return
    write_html(run, folder / "report.html", show=shown(run))
    print(f"report: {folder / 'report.html'}")
