"""What became of a file's tests, read from the plugin's log."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from reference_impl.platforms.upstream_tests.reasons import RULES, Rule, explain


@dataclass(frozen=True)
class Outcome:
    """One test: `passed`, `failed` or `skipped` over all its phases, what it said, and the rule that explains it."""

    test: str
    outcome: str
    message: str = ""
    rule: Rule | None = None


@dataclass
class FileResult:
    """One file of tests. `skipped` counts by reason; `unexplained` are failures and skips that no rule explains."""

    file: str
    passed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unexplained: list[Outcome] = field(default_factory=list)
    rules: set[Rule] = field(default_factory=set)


def read_log(log: Path, ended: str = "its process ended") -> list[Outcome]:
    """The tests in the log, in their order; one that was collected and has no end is failed, with `ended` as its message.

    Upstream's own word `failed` and `skipped` count alike here: what is explained is a skip, what is not is a failure.
    """
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    worst: dict[str, tuple[str, str]] = {}
    for test in (test for line in lines for test in line.get("collected", ())):
        worst[test] = ("failed", ended)
    severity = ["passed", "skipped", "failed"]
    seen: set[str] = set()
    for line in lines:
        if "test" not in line:
            continue
        test, outcome = line["test"], line["outcome"]
        if test not in seen or severity.index(outcome) > severity.index(worst[test][0]):
            worst[test] = (outcome, line["message"])
        seen.add(test)
    return [Outcome(test, outcome, message) for test, (outcome, message) in worst.items()]


def judged(file: str, outcomes: Iterable[Outcome], rules: Iterable[Rule] = RULES) -> FileResult:
    """The outcomes of one file, counted, each that did not pass under the reason that a rule gives."""
    result = FileResult(file)
    for each in outcomes:
        if each.outcome == "passed":
            result.passed += 1
        elif rule := explain(each.test, each.message, rules):
            result.skipped[rule.reason] += 1
            result.rules.add(rule)
        else:
            result.unexplained.append(each)
    return result


def stale(results: Iterable[FileResult], rules: Iterable[Rule] = RULES) -> list[Rule]:
    """Rules that explained nothing in a whole run."""
    used = {rule for result in results for rule in result.rules}
    return [rule for rule in rules if rule not in used]
