"""Count, with `pytest --docs-report`, the blocks that readers see and the blocks that this session executed.

A conftest at the root of a project loads this plugin and names its `Checks` by way of
`reference_impl.doctesting.sybil_parser.collector`. At the end a table has a row a file, and the last line of the session
sums it up. A block that is shown and was not executed, one that was executed and is not shown, a skip, and a warning of
Sphinx's each make the session fail.
"""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from reference_impl.doctesting import oracle
from reference_impl.doctesting.case import Case, Checks
from reference_impl.doctesting.report import Block, Report, block_of, compare

# Under this name a block travels with its test's report, also from a process of pytest-xdist.
BLOCK = "docs-block"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--docs-report",
        action="store_true",
        help="build the site and compare what its readers see with what was executed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep the books in the process that sees all reports."""
    if not config.getoption("docs_report"):
        return
    hooks = [getattr(plugin, "pytest_collect_file", None) for plugin in config.pluginmanager.get_plugins()]
    found = [getattr(hook, "checks", None) for hook in hooks]
    checks = next((checks for checks in found if isinstance(checks, Checks)), None)
    if checks is None:
        raise pytest.UsageError("--docs-report: no conftest.py says pytest_collect_file = collector(Checks(...))")
    _add_docstrings(config, checks)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Ledger(config, checks), "docs-ledger")


def _add_docstrings(config: pytest.Config, checks: Checks) -> None:
    """Add the docstrings to a session of all pages, which show them: `pytest docs` runs what a reader of `docs` sees."""
    folder = config.invocation_params.dir
    chosen = [(folder / arg.partition("::")[0]).resolve() for arg in config.args]
    if checks.pages.resolve() in chosen:
        packages = [path for path in checks.beside if path.suffix != ".md"]
        config.args += [str(path) for path in packages if not any(path.is_relative_to(each) for each in chosen)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note with a test what it executed, once it has passed."""
    yield
    case = getattr(getattr(item, "example", None), "parsed", None)
    if isinstance(case, Case) and case.fence.line in case.proved:
        block = block_of(case)
        if block is not None:
            item.user_properties.append((BLOCK, {**asdict(block), "source": str(block.source)}))


class Ledger:
    """What this session executed, and at its end the report about it."""

    def __init__(self, config: pytest.Config, checks: Checks) -> None:
        self.config = config
        self.checks = checks
        self.blocks: dict[tuple[str, int], dict[str, Any]] = {}
        self.seconds: defaultdict[Path, float] = defaultdict(float)
        self.skipped = 0
        self.report: Report | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down one report, of this process or of another."""
        file = (self.config.rootpath / report.location[0]).resolve()
        if not any(file.is_relative_to(path) for path in (self.checks.pages, *self.checks.beside)):
            return
        self.seconds[file] += report.duration
        self.skipped += report.skipped
        for name, block in report.user_properties:
            if name == BLOCK and report.when == "call" and report.passed and isinstance(block, dict):
                self.blocks[block["source"], block["line"]] = block

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Build the site and compare, unless the session came to no end of its own."""
        if exitstatus in {pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR}:
            return
        checks, folder = self.checks, self.config.invocation_params.dir
        pages = [path for path in checks.beside if path.suffix == ".md"]
        self.report = compare(
            oracle.build(checks.pages, checks.conf or checks.pages, pages),
            [Block(**{**block, "source": Path(block["source"])}) for block in self.blocks.values()],
            selected=[(folder / arg.partition("::")[0]).resolve() for arg in self.config.args],
            seconds=self.seconds,
            skipped=self.skipped,
            root=checks.root,
        )
        if self.report.problems and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and what is wrong."""
        if self.report is not None:
            terminalreporter.section("docs report")
            for line in self.report.table():
                terminalreporter.write_line(line)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print the last line of the session."""
        line = "docs: not counted, the session did not finish" if self.report is None else self.report.last_line()
        self.config.get_terminal_writer().line(line)
