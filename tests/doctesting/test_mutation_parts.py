"""What mutation rests on: a copy that goes back to what it was, and processes that leave nothing behind."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reference_impl.doctesting.mutation.forking import NoAnswerError, apart, can_fork
from reference_impl.doctesting.mutation.workspace import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """A copy of a project with one file at its root and one in a folder."""
    project = tmp_path / "original"
    (project / "docs").mkdir(parents=True)
    (project / ".hidden").mkdir()
    (project / ".hidden" / "x").write_text("x")
    (project / "a.txt").write_text("a")
    (project / "docs" / "b.txt").write_text("b")
    return Workspace(project, tmp_path / "copy")


def contents(space: Workspace) -> dict[str, str | None]:
    """Return each file's text, and None for a folder."""
    paths = [path for folder in (space.root, space.scratch) for path in folder.rglob("*")]
    return {path.name: None if path.is_dir() else path.read_text() for path in paths}


def test_a_copy_goes_back_to_the_original(space: Workspace) -> None:
    """A file that changed, one that went with its folder, one that came with a folder, and a temporary one."""
    changed = space.root / "a.txt"
    time_of_change = changed.stat().st_mtime_ns
    changed.write_text("b")
    (space.root / "docs" / "b.txt").unlink()
    (space.root / "docs").rmdir()
    (space.root / "runs" / "deep").mkdir(parents=True)
    (space.root / "runs" / "deep" / "c.txt").write_text("c")
    (space.scratch / "tmp").mkdir()
    (space.root / "link").symlink_to("nowhere")
    space.restore()
    assert contents(space) == {"a.txt": "a", "docs": None, "b.txt": "b"}
    assert changed.stat().st_mtime_ns == time_of_change
    assert space.scratch.is_dir()


def test_a_copy_goes_back_to_what_was_kept(space: Workspace) -> None:
    """What a page has written so far is there for what comes below."""
    (space.root / "a.txt").write_text("changed")
    (space.scratch / "made").mkdir()
    (space.scratch / "made" / "d.txt").write_text("d")
    space.keep()
    time_of_change = (space.root / "a.txt").stat().st_mtime_ns
    (space.root / "a.txt").unlink()
    (space.scratch / "made" / "d.txt").write_text("other")
    space.restore()
    assert contents(space) == {"a.txt": "changed", "docs": None, "b.txt": "b", "made": None, "d.txt": "d"}
    assert (space.root / "a.txt").stat().st_mtime_ns == time_of_change


def test_the_original_is_left_alone(space: Workspace, tmp_path: Path) -> None:
    (space.root / "a.txt").write_text("changed")
    assert (tmp_path / "original" / "a.txt").read_text() == "a"


def test_a_job_answers_from_another_process() -> None:
    """A long answer as well: it does not fit into a pipe at once."""
    assert apart(lambda: [os.getpid() != os.getppid(), "x" * 200_000], 30) == [True, "x" * 200_000]
    mark = ["here"]
    assert apart(lambda: mark.append("there"), 30) is None
    assert mark == ["here"]


def test_a_job_without_an_answer_is_told_apart() -> None:
    with pytest.raises(NoAnswerError):
        apart(lambda: os._exit(0), 30)
    with pytest.raises(NoAnswerError):
        apart(lambda: object(), 30)


def test_a_job_that_takes_too_long_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Even what has a session of its own, as the commands of a page have."""
    ids = tmp_path / "ids"

    def job() -> None:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        ids.write_text(str(started.pid))
        started.wait()

    with pytest.raises(TimeoutError):
        apart(job, 2)
    process = int(ids.read_text())
    for _ in range(100):
        if not _is_running(process):
            return
        time.sleep(0.05)
    pytest.fail(f"{process} is still running")


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_with_a_thread_or_a_helper_is_not_to_be_copied() -> None:
    def job() -> list[bool]:
        alone = can_fork()
        go_on = threading.Event()
        thread = threading.Thread(target=go_on.wait)
        thread.start()
        threaded = can_fork()
        go_on.set()
        thread.join()
        helper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        helped = can_fork()
        helper.kill()
        helper.wait()
        return [alone, threaded, helped, can_fork()]

    assert apart(job, 60) == [True, False, False, True]
