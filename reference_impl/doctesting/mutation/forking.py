"""Do a job in a forked process with a time limit, and leave nothing of it running."""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

_LENGTH_BYTES = 8


class NoAnswerError(Exception):
    """The process ended before it had one."""


def apart(job: Callable[[], Any], limit_seconds: float) -> Any:
    """Return what `job` returns, which JSON can carry. `TimeoutError` when it takes too long, `NoAnswerError` when it gives none."""
    deadline = time.monotonic() + limit_seconds
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(job, writing)
    os.close(writing)
    try:
        length = int.from_bytes(_read(reading, _LENGTH_BYTES, deadline))
        return json.loads(_read(reading, length, deadline))
    finally:
        os.close(reading)
        for process in [*_descendants(child), child]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os.waitpid(child, 0)
        # What was orphaned is no descendant any more, but unless it made a group of its own it is still in this one.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def can_fork() -> bool:
    """Say whether a copy of this process would work: threads are not copied, and two cannot share one helper process."""
    tasks = Path("/proc/self/task")
    return tasks.exists() and len(os.listdir(tasks)) == 1 and not list(_descendants(os.getpid()))


def _answer(job: Callable[[], Any], writing: int) -> NoReturn:
    """Do the job, write what it returns, and end without doing what the parent has registered for its own end."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        text = json.dumps(job()).encode()
        rest = len(text).to_bytes(_LENGTH_BYTES) + text
        while rest:
            rest = rest[os.write(writing, rest) :]
    finally:
        os._exit(0)


def _read(reading: int, count: int, deadline: float) -> bytes:
    """Read so many bytes. The end of the pipe is not awaited: a process that a page has started may hold it open."""
    found = b""
    while len(found) < count:
        ready, _, _ = select.select([reading], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            raise TimeoutError
        part = os.read(reading, count - len(found))
        if not part:
            raise NoAnswerError
        found += part
    return found


def _descendants(process: int) -> Iterator[int]:
    """Yield the processes below one, the deepest first; none where there is no /proc."""
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield from _descendants(child)
                yield child
