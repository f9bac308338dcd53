"""The standard streams and the exit status: what passes between a command and whoever has started it."""

import io
import os
import signal
import sys

from reference_impl.config.errors import ConfigError

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells count it."""


def lines_of_stdin() -> list[str]:
    """The lines of standard input without their ends; blank ones are left out. A closed standard input has none."""
    if sys.stdin is None:
        return []
    try:
        return [line.rstrip("\n") for line in sys.stdin if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input: not UTF-8 text ({error.reason} at byte {error.start})") from None


def accept_any_text() -> None:
    """Let standard output show "?" for a character that its encoding lacks, rather than end the run."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def drop_output() -> None:
    """Standard output to nowhere, since its reader has left: what is still to come, and what Python has buffered."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
