"""Entry point of `genref`: the commands, and how errors reach people (one line, exit status 2, no traceback)."""

import os
import sys

import typer

from reference_impl import __version__
from reference_impl.cli.demo import demo
from reference_impl.cli.generate import generate
from reference_impl.config.errors import ConfigError

app = typer.Typer(
    name="genref",
    help="Generate with Megatron Core's own engine and see which checkpoint sampled each token.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(demo)


@app.callback(invoke_without_command=True)
def main(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Generate with Megatron Core's own engine and see which checkpoint sampled each token."""
    if version:
        print(__version__)
        raise typer.Exit


def run() -> None:
    """Run the command line; what a user can mend becomes one line on standard error and exit status 2."""
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has left; what was generated is in the run folder.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ConfigError as error:
        fail(error)
    except Exception as error:
        if _is_for_the_user(error):
            fail(error)
        raise


def fail(error: Exception) -> None:
    """Say what is wrong and leave with status 2."""
    print(f"genref: {error}", file=sys.stderr)
    sys.exit(2)


def _is_for_the_user(error: Exception) -> bool:
    # These classes live in modules that import torch; an error of theirs means that it has been imported.
    names = {"ModelError", "GenerationError"}
    return any(kind.__name__ in names and kind.__module__.startswith("reference_impl.") for kind in type(error).__mro__)
