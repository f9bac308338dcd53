"""Run the commands of a `console` fence as a reader would type them, and compare what each prints.

A fence is a list of commands, each a line that begins with `$ `, followed by its output (stdout, then stderr). A
backslash at the end of a line continues the command. There is no shell: a pipe, a redirection or a variable is refused,
and so is a program that is not on the list, because a page must not be able to do what its reviewer did not expect.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from reference_impl.doctesting.matching import difference

PROMPT = "$ "
_EXIT = re.compile(r"\[exit (-?\d+)\]")
_SHELL = frozenset("();<>|&")

# What makes a program's output depend on who runs it: the width and colours of a terminal, and the locale.
_SAME_FOR_ALL = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}


@dataclass(frozen=True)
class Command:
    """One command of a fence, the output that the page gives it, and the exit status that the page promises."""

    typed: str
    output: str
    status: int


def run_fence(source: str, *, root: Path, allowed: Collection[str], timeout_seconds: float) -> str | None:
    """Run the commands of a fence from `root` in order; return what is wrong with the first that fails, or None."""
    if not source.startswith(PROMPT):
        return f"a console fence begins with a command, on a line that begins with {PROMPT!r}"
    for command in commands(source):
        try:
            words = _words(command.typed, allowed)
        except ValueError as refusal:
            problem: str | None = str(refusal)
        else:
            problem = _run(words, command, root, timeout_seconds)
        if problem is not None:
            return f"{PROMPT}{command.typed}\n{problem}"
    return None


def commands(source: str) -> Iterator[Command]:
    """Yield the commands of a fence with what follows each."""
    for block in re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]:
        lines = block.rstrip("\n").split("\n")
        typed = lines.pop(0)
        while typed.endswith("\\") and lines:
            typed = f"{typed[:-1].rstrip()} {lines.pop(0).strip()}"
        promised = _EXIT.fullmatch(lines[-1].strip()) if lines else None
        yield Command(typed, "\n".join(lines[:-1] if promised else lines), int(promised[1]) if promised else 0)


def _words(typed: str, allowed: Collection[str]) -> list[str]:
    """Split a command into words; raise `ValueError` with the reason when it is one that is not run."""
    lexer = shlex.shlex(typed, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    if not words:
        raise ValueError("an empty command")
    for word in words:
        if (word and set(word) <= _SHELL) or "$" in word or "`" in word:
            raise ValueError(f"{word!r} needs a shell, and pages are run without one")
    if words[0] not in allowed:
        raise ValueError(f"{words[0]!r} is not among the commands that pages may run: {', '.join(sorted(allowed))}")
    if not _program(words[0]).exists():
        raise ValueError(f"{words[0]!r} is not installed beside {sys.executable}")
    return words


def _program(name: str) -> Path:
    """Return the program beside the running interpreter, so that a page never runs another environment's."""
    return Path(sys.executable) if name == "python" else Path(sys.executable).parent / name


def _run(words: list[str], command: Command, root: Path, timeout_seconds: float) -> str | None:
    """Run one command and say how it strays from the page."""
    bin_folder = Path(sys.executable).parent
    path = f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        [str(_program(words[0])), *words[1:]],
        cwd=root,
        env={**os.environ, **_SAME_FOR_ALL, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # A group of its own, so that a time-out also ends what the command has started.
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return f"still running after {timeout_seconds:g} s; so far it printed\n{stdout}{stderr}"
    if process.returncode != command.status:
        return f"exit status {process.returncode}, the page says {command.status}; it printed\n{stdout}{stderr}"
    return difference(stdout + stderr, command.output)
