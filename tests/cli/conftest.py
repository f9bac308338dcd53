"""The command `genref` in this process, which has to import torch once, and as a process of its own."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> list[dict]:
        """Standard output as JSON lines; anything else on it is an error."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def genref(monkeypatch, capfd, tmp_path):
    """`genref(*arguments, stdin=text)` runs the command in this process, in an empty folder; `stdin=None` is closed."""
    from reference_impl.cli.main import run

    monkeypatch.chdir(tmp_path)
    on_interrupt, level = signal.getsignal(signal.SIGINT), logging.getLogger().level

    def call(*arguments: str, stdin: str | None = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["genref", *arguments])
        monkeypatch.setattr(sys, "stdin", None if stdin is None else io.StringIO(stdin))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        return Result(ended.value.code or 0, *capfd.readouterr())

    yield call
    signal.signal(signal.SIGINT, on_interrupt)  # an interrupted command leaves it ignored
    logging.getLogger().setLevel(level)


@pytest.fixture
def start_genref(tmp_path):
    """`start_genref(*arguments, **popen)` starts the real process, its group its own, on a machine without a GPU."""
    command = Path(sysconfig.get_path("scripts")) / "genref"
    # Without the variable, one process leaves compiled modules for the next: there are thousands.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = []

    def start(*arguments: str, **popen) -> subprocess.Popen:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            [command, *arguments],
            cwd=tmp_path,
            env={**env, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
            **(pipes | popen),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:  # a test has failed
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
