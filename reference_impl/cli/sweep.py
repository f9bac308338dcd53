"""`genref sweep`: a recipe at several settings, and what each does to reward and to staleness."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reference_impl.cli.quiet import quiet_upstream

if TYPE_CHECKING:
    from reference_impl.rl.sweep import Outcome

HEAD = f"{'reward':>7} {'staleness':>10} {'KV':>6} {'gap':>6} {'prob error':>11} {'steps/s':>7}"


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe (YAML).")],
    settings: Annotated[list[str], typer.Argument(help="Changes to the recipe, several values at a time: key=a,b,c.")],
    run_folder: Annotated[
        Path | None, typer.Option(help="Where everything goes. Default: runs/sweep-DATE-TIME.")
    ] = None,
) -> None:
    """Train a recipe once for every combination of settings, and plot reward against staleness."""
    quiet_upstream()
    from reference_impl.rl.sweep import grid, names, recipes

    combinations = grid(settings)
    made = recipes(recipe, combinations)

    from reference_impl.cli.session import open_folder
    from reference_impl.rl.sweep import sweep as runs
    from reference_impl.rl.sweep import write
    from reference_impl.rl.sweep_page import write_page

    folder = open_folder("sweep", run_folder)
    (folder / "run.jsonl").unlink()
    width = max(map(len, names(combinations)))
    print(f"{'':{width}} {HEAD}", flush=True)
    outcomes: list[Outcome] = []
    try:
        for outcome in runs(made, combinations, folder):
            outcomes.append(outcome)
            print(f"{outcome.name:{width}} {row(outcome)}", flush=True)
    finally:
        if outcomes:
            write(outcomes, folder / "sweep.jsonl")
            write_page(outcomes, folder / "sweep.html")
            print(f"plot: {folder / 'sweep.html'}")


def row(outcome: "Outcome") -> str:
    """The means over the run's last steps."""
    late = outcome.late
    return (
        f"{late('reward'):7.3f} {late('token_mean_policy_staleness'):10.2f} {late('token_mean_kv_cache_staleness'):6.2f} "
        f"{late('mean_completion_gap'):6.2f} {late('token_mult_prob_error'):11.3f} "
        f"{outcome.steps_per_second:7.2f}"
    )
