"""`genref plan`: what a recipe will do with memory and how many requests it runs at once, without running anything."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from reference_impl.planning.plan import Plan

DOES_NOT_FIT = 1


class Format(StrEnum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"


def plan(
    file: Annotated[Path, typer.Argument(help="Recipe (YAML).")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes to the recipe: key=value, +key=value.")] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of each prompt. Default: what max_new_tokens leaves, or half.")
    ] = None,
    response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of each response. Default: max_new_tokens.")
    ] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(help="Memory of a GPU in GiB; say whether the plan fits. Exit status 1 if not.")
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(metavar="KEY=V1,V2,...", help="Try several values of a key, such as buffer_size_gb=5,10,20."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="With --sweep: write a plot, a page or .svg.")] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="config.json of a model whose sizes are not known here.")
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TEXT,
) -> None:
    """Say what a recipe will cost in memory and how many requests it will run at once."""
    if plot and not sweep:
        raise ConfigError("--plot: there is nothing to plot without --sweep")
    if gpu_memory is not None and not 0 < gpu_memory < float("inf"):
        raise ConfigError(f"--gpu-memory: {gpu_memory:g}; expected GiB above 0")
    from reference_impl.config.loader import load_recipe
    from reference_impl.models.shapes import find_shape
    from reference_impl.planning.plan import make_plan
    from reference_impl.planning.sweep import Sweep, table
    from reference_impl.planning.text import as_text, as_tree, fits

    def planned(*more: str) -> "Plan":
        recipe = load_recipe(file, [*(overrides or []), *more])
        shape = find_shape(recipe.policy.model_name, model_config)
        return make_plan(recipe, shape, prompt_tokens=prompt_tokens, response_tokens=response_tokens)

    if sweep:
        tried = Sweep.parse(sweep)
        plans = tried.plans(planned)
        if plot:
            from reference_impl.planning.plot import write_plot

            write_plot(tried, plans, plot)
        if output_format is Format.TEXT:
            print(table(tried, plans, gpu_memory))
        else:
            pairs = zip(tried.values, plans, strict=True)
            show_json([{tried.key: value, **as_tree(each, gpu_memory)} for value, each in pairs])
        return
    only = planned()
    if output_format is Format.TEXT:
        print(as_text(only, gpu_memory))
    else:
        show_json(as_tree(only, gpu_memory))
    if gpu_memory is not None and not fits(only, gpu_memory):
        raise typer.Exit(DOES_NOT_FIT)


def show_json(tree: Any) -> None:
    """Print a tree as indented JSON."""
    print(json.dumps(tree, indent=2, ensure_ascii=False))
