"""Run upstream's inference unit tests file by file, each in a process of its own, on the CPU platform."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from reference_impl.platforms.upstream_tests.outcomes import FileResult, Outcome, judged, read_log

SUITE = Path("tests/unit_tests/inference")
PLUGIN = "reference_impl.platforms.upstream_tests.plugin"
# Upstream's tests ask for the first two; the third ends a test that hangs.
PACKAGES = {"pytest_asyncio": "pytest-asyncio", "pytest_mock": "pytest-mock", "pytest_timeout": "pytest-timeout"}
SECONDS_A_TEST = 120
SECONDS_A_FILE = 1200


def why_not(checkout: Path) -> str | None:
    """In one line, what keeps the suite of this checkout from being run; `None` if nothing does."""
    if not (checkout / SUITE).is_dir():
        return f"{checkout} has no {SUITE}: expected a checkout of Megatron-LM"
    if missing := [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]:
        return f"not installed: {', '.join(missing)}; upstream's tests need it, and the extra upstream-tests brings it"
    here, there = importlib.metadata.version("megatron-core"), version_of(checkout)
    if here.split(".")[:2] != there.split(".")[:2]:
        return f"{checkout} is megatron-core {there}, and {here} is installed: expected a checkout of core_v{minor(here)}.0"
    return None


def minor(version: str) -> str:
    """The first two numbers of a version."""
    return ".".join(version.split(".")[:2])


def version_of(checkout: Path) -> str:
    """The version that the checkout's own megatron-core would have."""
    text = (checkout / "megatron/core/package_info.py").read_text("utf-8")
    return ".".join(re.findall(r"^(?:MAJOR|MINOR|PATCH) = (\d+)$", text, re.MULTILINE))


def files(checkout: Path, words: Sequence[str] = ()) -> list[Path]:
    """The suite's files from the checkout's root, in order; with `words`, those whose path has one of them."""
    found = sorted(path.relative_to(checkout) for path in (checkout / SUITE).rglob("test_*.py"))
    return [path for path in found if not words or any(word in str(path) for word in words)]


def run(checkout: Path, chosen: Sequence[Path]) -> Iterator[FileResult]:
    """Run each file and yield what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        for number, file in enumerate(chosen):
            log = Path(folder) / f"{number}.jsonl"
            ended = run_file(checkout, file, log)
            outcomes = read_log(log, ended) or [Outcome(str(file), "failed", f"no test was collected, and {ended}")]
            yield judged(str(file.relative_to(SUITE)), outcomes)


def run_file(checkout: Path, file: Path, log: Path) -> str:
    """Run one file; returns how its process ended, in words. The megatron-core that is tested is the installed one."""
    options = {"--import-mode": "append", "--rootdir": str(checkout), "--timeout": str(SECONDS_A_TEST)}
    command = [sys.executable, "-P", "-m", "pytest", "-c", os.devnull, "-q", "-p", PLUGIN, "-p", "no:cacheprovider"]
    command += [f"{name}={value}" for name, value in options.items()] + ["--tb=short", str(file)]
    process = subprocess.Popen(
        command,
        cwd=checkout,
        env=environment(log),
        stdout=log.with_suffix(".out").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,  # engines start coordinators, which have to end with the file
    )
    try:
        return f"its process ended with status {process.wait(SECONDS_A_FILE)}"
    except subprocess.TimeoutExpired:
        return f"its file ran for more than {SECONDS_A_FILE} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(log: Path) -> dict[str, str]:
    """The environment of one rank, alone, on a port that was free a moment ago; threads would only wait for each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return os.environ | rank | quiet | {"UPSTREAM_TESTS_LOG": str(log)}
