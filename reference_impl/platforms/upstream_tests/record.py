"""A run of the suite as a file of JSON, and the section of a page that shows it."""

import json
import os
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from reference_impl.platforms.upstream_tests.outcomes import FileResult
from reference_impl.platforms.upstream_tests.reasons import REASONS

RECORD = "upstream-suite.json"
BEGIN, END = "<!-- written by make upstream-tests: -->", "<!-- : written by make upstream-tests -->"

RUN = ("date", "machine", "megatron_core", "torch")


@dataclass(frozen=True)
class Record:
    """What one run of the whole suite gave: for each file, counts by `passed`, `failed` and the reasons of its skips."""

    date: str
    machine: str
    megatron_core: str
    torch: str
    files: dict[str, dict[str, int]]

    def passed(self, file: str = "") -> int:
        """Tests that passed, in one file or in all."""
        return self.because("passed", file)

    def failed(self, file: str = "") -> int:
        """Tests that failed or were skipped, and that no rule explains."""
        return self.because("failed", file)

    def skipped(self, file: str = "") -> int:
        """Tests that a rule explains."""
        return sum(self.because(reason, file) for reason in REASONS)

    def because(self, reason: str, file: str = "") -> int:
        """Tests of one file, or of all, under one heading."""
        return sum(counts.get(reason, 0) for name, counts in self.files.items() if file in ("", name))

    def why(self, file: str) -> str:
        """The reasons of one file's skips, each with its count, the most frequent first."""
        counts = [(self.because(reason, file), reason) for reason in REASONS]
        return ", ".join(f"{reason} {count}" for count, reason in sorted(counts, key=lambda each: -each[0]) if count)


def record_of(results: Iterable[FileResult]) -> Record:
    """The record of a run that ended just now on this machine."""
    results = list(results)
    return Record(
        date=date.today().isoformat(),
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        megatron_core=version("megatron-core"),
        torch=version("torch"),
        files={
            result.file: dict(Counter(passed=result.passed, failed=len(result.unexplained)) + result.skipped)
            for result in results
        },
    )


def read(path: Path) -> Record:
    """The record in a file that {py:func}`write` wrote."""
    return Record(**json.loads(path.read_text("utf-8")))


def write(record: Record, page: Path) -> None:
    """Put the record beside the page, and its tables between the two marks on the page."""
    page.with_name(RECORD).write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8")
    page.write_text(with_section(page.read_text("utf-8"), section(record)), "utf-8")


def with_section(text: str, section: str) -> str:
    """The text of a page with what stands between the marks replaced."""
    before, found, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not (found and found_end):
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def section(record: Record) -> str:
    """The tables as MyST; every number is a value of `suite`, the record as the page has read it."""
    rows = [_row(record, file) for file in record.files]
    reasons = [
        f"| {reason} | {_value(record.because(reason), f'suite.because({reason!r})')} | {meaning} |"
        for reason, meaning in REASONS.items()
        if record.because(reason)
    ]
    sums = {name: _value(getattr(record, name)(), f"suite.{name}()") for name in ("passed", "failed", "skipped")}
    run = {name: _value(getattr(record, name), f"suite.{name}") for name in RUN}
    text = f"""\
Run on {run["date"]} with megatron-core {run["megatron_core"]} and torch {run["torch"]}
({run["machine"]}). {sums["passed"]} tests passed,
{sums["failed"]} failed, and {sums["skipped"]} were skipped for a reason."""
    heads = ["| file | passed | not passed, and why |", "|---|--:|---|"]
    meanings = ["| reason | tests | what it means |", "|---|--:|---|"]
    return "\n".join([text, "", *heads, *rows, "", *meanings, *reasons])


def _row(record: Record, file: str) -> str:
    not_passed = [_value(record.why(file), f"suite.why({file!r})")] if record.skipped(file) else []
    if record.failed(file):
        not_passed.append(f"failed {_value(record.failed(file), f'suite.failed({file!r})')}")
    return f"| {file} | {_value(record.passed(file), f'suite.passed({file!r})')} | {', '.join(not_passed)} |"


def _value(shown: object, expression: str) -> str:
    """A role that shows a text and names the expression that gives it."""
    return f"{{value}}`{shown} <{expression}>`"
