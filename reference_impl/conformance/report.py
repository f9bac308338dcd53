"""What a run of the suite says: a line a check as it ends, a sum at the end, and the same as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from reference_impl.conformance.suite import Check, Result


def listed(checks: Sequence[Check]) -> str:
    """Names, what each protects, and the features that it is about."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        needs = f" [{', '.join(check.needs)}]" if check.needs else ""
        lines.append(f"{check.name:{width}}  {check.protects}{needs}")
    return "\n".join(lines)


def line(result: Result, width: int) -> str:
    """One result; the reason of a failure, or of a feature that is not claimed, stands behind it."""
    return f"{result.check:{width}}  {result.outcome:14}  {result.why}".rstrip()


def summary(results: Iterable[Result]) -> str:
    """How many passed, failed, and were not claimed."""
    counts = Counter(result.outcome for result in results)
    number = counts.total()
    said = [f"{counts['passed']} passed", f"{counts['failed']} failed", f"{counts['does not claim']} not claimed"]
    return f"{number} check{'' if number == 1 else 's'}: {', '.join(said)}"


def as_json(results: Iterable[Result]) -> str:
    """A list of objects with the fields of {py:class}`~reference_impl.conformance.suite.Result`."""
    return json.dumps([asdict(result) for result in results], indent=2)
