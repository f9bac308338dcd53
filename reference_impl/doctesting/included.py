"""Check what a page takes from a file: data as if it stood on the page, anything else by the test that the page names."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from reference_impl.doctesting.case import Case, Evaluator, included_file
from reference_impl.doctesting.data_fences import check_json, check_toml, check_yaml

_DATA: dict[str, Evaluator] = {".json": check_json, ".toml": check_toml, ".yaml": check_yaml, ".yml": check_yaml}


def check_literalinclude(case: Case) -> str | None:
    """Check an included file. Sphinx checks that the part which is asked for exists.

    YAML, JSON and TOML are checked whole, as a fence would be. Of another file, `:tested-by:` names the test.
    """
    file = included_file(case)
    if not file.is_file():
        return f"no such file: {file}"
    if "diff" in case.fence.options:
        return ":diff: shows a second file, which nothing checks"
    test = case.fence.options.get("tested-by")
    if test:
        return run_test(test, case)
    check = _DATA.get(file.suffix)
    if check is None:
        return f"name the test that runs {file.name}, as :tested-by: tests/FILE.py::TEST"
    problem = check(replace(case, fence=replace(case.fence, source=file.read_text("utf-8"), source_line=1)))
    return None if problem is None else f"{file.name}: {problem}"


def run_test(node: str, case: Case) -> str | None:
    """Run a test with pytest in a process of its own: it must pass, and nothing in it may fail or be skipped.

    A test that several includes name is run once.
    """
    return _outcome(node, case.checks.root, case.checks.timeout_seconds)


@cache
def _outcome(node: str, root: Path, timeout_seconds: float) -> str | None:
    """Return what is wrong with the outcome of a test."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", node, "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        # What the session around this one was told, and what pytest-xdist tells its workers, is not for this one.
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
        try:
            done = subprocess.run(
                command,
                cwd=root,
                env=env,
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{node} was still running after {timeout_seconds:g} s"
        if done.returncode or not report.is_file():
            return f"{node} did not pass:\n{done.stdout}{done.stderr}"
        counts = _counts(report)
    passed = counts("tests") - counts("failures") - counts("errors") - counts("skipped")
    if not passed or counts("skipped"):
        return f"{node}: {passed} passed and {counts('skipped')} skipped; all of it must run"
    return None


def _counts(report: Path) -> Callable[[str], int]:
    """Return how to look up a count in pytest's own report."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    return lambda name: sum(int(suite.get(name, 0)) for suite in suites)
