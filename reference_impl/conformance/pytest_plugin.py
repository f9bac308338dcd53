"""Hold a backend to the contract within pytest: each check is a test, with `--conformance-backend NAME`.

Load it with `-p reference_impl.conformance.pytest_plugin`, or name it in a conftest's `pytest_plugins`. A check about a
feature that the backend does not claim is no test, but is counted at the end.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reference_impl.config.errors import ConfigError
from reference_impl.conformance.backends import find_backend
from reference_impl.conformance.expect import ContractError
from reference_impl.conformance.lab import Models
from reference_impl.conformance.suite import Check, all_checks, not_claimed, run_check


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("conformance", "holding a generation backend to the contract")
    group.addoption("--conformance-backend", metavar="NAME", help="a registered backend, or package.module:Class")
    group.addoption("--conformance-checks", metavar="PATTERN", default="*", help="checks to run, such as 'staleness/*'")


class Suite(pytest.Collector):
    """The checks of one backend."""

    backend: Any
    chosen: list[Check]
    models: Models

    def collect(self) -> Iterator["CheckItem"]:
        """A test for each check that the backend has to pass."""
        for each in self.chosen:
            if not set(each.needs) & set(not_claimed(self.backend)):
                item: CheckItem = CheckItem.from_parent(self, name=each.name)
                item.check = each
                yield item


class CheckItem(pytest.Item):
    """One check as a test."""

    check: Check

    def runtest(self) -> None:
        """Run it on backends of its own."""
        suite = self.parent
        assert isinstance(suite, Suite)
        result = run_check(self.check, suite.backend, suite.models)
        if result.outcome == "failed":
            raise ContractError(result.why)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """What the check protects and what it found, without this plugin's own frames."""
        if isinstance(excinfo.value, ContractError):
            return f"{self.check.protects}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where a report says that the test is: it has a name and no file."""
        return self.path, None, self.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the checks to what was collected; `-k` picks among them as among other tests."""
    name = config.getoption("conformance_backend")
    if name is None:
        return
    try:
        backend = find_backend(name)
        chosen = all_checks(config.getoption("conformance_checks"))
        reasons = not_claimed(backend)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    folder = tempfile.TemporaryDirectory(prefix="genref-conformance-")
    config.add_cleanup(folder.cleanup)
    suite: Suite = Suite.from_parent(session, name="conformance", nodeid="conformance")
    suite.backend, suite.chosen, suite.models = backend, chosen, Models(Path(folder.name))
    found, asked = list(suite.collect()), {feature for each in chosen for feature in each.needs}
    items += found
    config.stash[SAID] = [
        f"{name}: {len(found)} checks, {len(chosen) - len(found)} not claimed",
        *(f"does not claim {feature}: {reason}" for feature, reason in reasons.items() if feature in asked),
    ]


SAID = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not claimed."""
    if SAID in config.stash:
        terminalreporter.section("conformance")
        for text in config.stash[SAID]:
            terminalreporter.write_line(text)
