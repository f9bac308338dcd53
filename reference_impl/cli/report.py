"""`genref report`: how stale the rollouts of a run are, as a page for a browser or as text for the terminal."""

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reference_impl.config.errors import ConfigError

if TYPE_CHECKING:
    from reference_impl.staleness.report.view import View


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, run.jsonl files, or JSON lines of another system."),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The page. Default: report.html.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Print to the terminal; no page, unless -o names one.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Draw two runs over each other, and list what differs.")
    ] = False,
    step: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show this training step only. For a run that was not trained on: the step at which staleness is shown. "
            "Default: the newest epoch in the run.",
        ),
    ] = None,
    show: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            metavar="INDEX",
            help="Draw the tokens of this sequence; may be repeated. Default: the first ones; with --compare, none.",
        ),
    ] = None,
) -> None:
    """Report how stale rollouts are: by training step, by rollout and by token.

    Each run gets a section of the page; parts of one run are not joined.
    """
    with kept_objects():
        views = read_views(runs, step, show, compare)
        if text:
            print_text(views, show, compare)
        if output or not text:
            path = output or Path("report.html")
            refuse_to_overwrite(path, runs)
            from reference_impl.staleness.report.page import write_views

            write_views(views, path, show=show or None, compare=compare)
            print(f"report: {path}")


@contextlib.contextmanager
def kept_objects() -> Iterator[None]:
    """No garbage collection: nearly everything that a large file is read into is kept, and looking through it takes time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_views(runs: list[Path], step: int | None, show: list[int] | None, compare: bool) -> "list[View]":
    """Each run with what its steps consumed; what is wrong with one is a `ConfigError` that names it."""
    from reference_impl.staleness.readers.detect import read_any
    from reference_impl.staleness.report.view import refuse_unknown, view_of

    if compare and len(runs) != 2:
        raise ConfigError(f"--compare: expected two runs, got {len(runs)}")
    views = []
    for path in runs:
        try:
            run = read_any(path)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        try:
            views.append(view_of(run, str(path), step))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    try:
        refuse_unknown(views, show)
    except ValueError as error:
        raise ConfigError(f"--show: {error}") from None
    return views


def refuse_to_overwrite(path: Path, runs: list[Path]) -> None:
    """A page is never written over what it is about."""
    from reference_impl.staleness.runs import RUN_FILE

    if any(path.resolve() in (run.resolve(), (run / RUN_FILE).resolve()) for run in runs if path.is_file()):
        raise ConfigError(f"--output: {path} is one of the runs")


def print_text(views: "list[View]", show: list[int] | None, compare: bool) -> None:
    """Print the runs one after the other, or two compared, then the sequences that were asked for."""
    from reference_impl.staleness.report.text import comparison, summary

    print(comparison(*views) if compare else "\n\n\n".join(map(summary, views)))
    if not show:
        return
    from rich.console import Console

    from reference_impl.staleness.report.terminal import print_strips

    console = Console(highlight=False)
    for view in views:
        print()
        print_strips(view.run, console, [sequence for sequence in view.run.sequences if sequence.index in show])
