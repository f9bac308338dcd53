"""A pytest plugin: a session of upstream's tests on the CPU platform, and what became of each test as a line of JSON.

Where the lines go is said by the environment variable `UPSTREAM_TESTS_LOG`.
"""

import contextlib
import importlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from reference_impl.platforms import cpu
from reference_impl.platforms.upstream_tests import cuda_names, upstream_imports
from reference_impl.platforms.upstream_tests.ranks import refused_beyond

LOG = "UPSTREAM_TESTS_LOG"
OURS = str(Path(__file__).parent)


def pytest_configure(config: pytest.Config) -> None:
    """The platform, and what the tests ask beyond it, for the whole session."""
    cpu.enable()
    stack = contextlib.ExitStack()
    stack.enter_context(cuda_names.answered())
    stack.enter_context(upstream_imports.answered())
    config.add_cleanup(stack.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note what there is to run, so that what a crash leaves out is missed; and refuse ranks that there are not."""
    Utils = importlib.import_module("tests.unit_tests.test_utilities").Utils  # noqa: N806
    Utils.initialize_model_parallel = staticmethod(refused_beyond(Utils.initialize_model_parallel, Utils.world_size))
    _log(collected=[item.nodeid for item in items])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
    """Log each phase of each test."""
    report = yield
    message = said(call.excinfo) if call.excinfo is not None else ""
    _log(test=item.nodeid, outcome=report.outcome, message=message)
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a test that failed."""
    if not report.passed:
        _log(test=report.nodeid, outcome=report.outcome, message=str(report.longrepr))


def said(info: pytest.ExceptionInfo) -> str:
    """What was raised and where: the innermost frame that is not ours, from the folder of its package."""
    frames = [entry for entry in info.traceback if not str(entry.path).startswith(OURS)]
    path = str(frames[-1].path).rpartition("site-packages/")[2] if frames else "?"
    return f"{' '.join(info.exconly().split())[:2000]} at {path}"


def _log(**what: Any) -> None:
    with open(os.environ[LOG], "a", encoding="utf-8") as file:
        print(json.dumps(what), file=file)
