"""Entry point of `genref`: the commands, and how errors reach people (one line, exit status 2, no traceback)."""

import multiprocessing
import signal
import sys

import typer

from reference_impl import __version__
from reference_impl.cli import bench
from reference_impl.cli.conformance import conformance
from reference_impl.cli.demo import demo
from reference_impl.cli.generate import generate
from reference_impl.cli.lint import lint
from reference_impl.cli.plan import plan
from reference_impl.cli.quiet import quiet_upstream
from reference_impl.cli.report import report
from reference_impl.cli.streams import INTERRUPTED, accept_any_text, drop_output
from reference_impl.cli.sweep import sweep
from reference_impl.cli.train import train
from reference_impl.config.errors import ConfigError

# What the extra `megatron` installs and a command that generates imports; without it, the other commands work.
ENGINE_PACKAGES = frozenset({"accelerate", "megatron", "torch", "transformers", "zmq"})

app = typer.Typer(
    name="genref",
    help="Generate and train with Megatron Core's own engine, see how stale each token is, check and size recipes.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(demo)
app.command()(train)
app.command()(sweep)
app.command()(report)
app.command()(lint)
app.command()(plan)
app.command()(conformance)
app.add_typer(bench.app, name="bench")

if multiprocessing.current_process().name != "MainProcess":
    # Megatron's coordinator process imports the script that was started, and with it this module; `run` is not called.
    quiet_upstream()


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    """Generate and train with Megatron Core's own engine, see how stale each token is, check and size recipes."""
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def run() -> None:
    """Run the command line; what a user can mend becomes one line on standard error and exit status 2."""
    accept_any_text()
    try:
        # Not standalone, which would print a usage error as several lines. Ctrl-C comes back as status 130.
        status = app(prog_name="genref", standalone_mode=False)
        if status == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # on the way out, one more would only print a traceback
        print(end="", flush=True)
        sys.exit(status)
    except BrokenPipeError:
        drop_output()
        sys.exit(1)
    except typer.TyperException as error:
        fail(error.format_message())
    except ConfigError as error:
        fail(str(error))
    except OSError as error:
        if error.errno is None:  # no file's error, but a time-out or a library that does not load
            raise
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ENGINE_PACKAGES:
            raise
        fail(f"this command needs {error.name}; pip install 'megatron-generation-reference[megatron]' brings it")
    except Exception as error:
        if _is_for_the_user(error):
            fail(str(error))
        raise


def fail(message: str) -> None:
    """Say what is wrong, each problem on a line of its own, and leave with status 2."""
    for line in message.splitlines():
        print(f"genref: {line}", file=sys.stderr)
    sys.exit(2)


def _is_for_the_user(error: Exception) -> bool:
    # These classes live in modules that import torch; an error of theirs means that it has been imported.
    names = {"ModelError", "GenerationError"}
    return any(kind.__name__ in names and kind.__module__.startswith("reference_impl.") for kind in type(error).__mro__)
