"""Print what became of the mutants: counts by kind and page, what each check saw and took, and each survivor."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from reference_impl.doctesting.mutation.bench import Verdict
from reference_impl.doctesting.mutation.excuses import Excuse
from reference_impl.doctesting.mutation.mutants import KINDS, Mutant

KILLED, SURVIVED, EQUIVALENT = "killed", "survived", "equivalent"


@dataclass(frozen=True)
class Outcome:
    """A mutant, what the checks made of it, and why it may survive, if there is a reason."""

    mutant: Mutant
    verdict: Verdict
    excuse: Excuse | None = None

    @property
    def fate(self) -> str:
        """`killed`, `survived` or `equivalent`."""
        if self.verdict.killed_by is not None:
            return KILLED
        return EQUIVALENT if self.excuse else SURVIVED


def report(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from _checks(outcomes)
    yield from _counts("kind", outcomes, lambda outcome: outcome.mutant.kind, KINDS)
    yield from _counts("page", outcomes, lambda outcome: outcome.mutant.page, sorted({o.mutant.page for o in outcomes}))
    for excuse in dict.fromkeys(o.excuse for o in outcomes if o.excuse and o.fate == EQUIVALENT):
        count = sum(o.excuse == excuse and o.fate == EQUIVALENT for o in outcomes)
        yield f"equivalent: {count} with {excuse}: {excuse.reason}"
    survivors = sorted(outcome.mutant for outcome in outcomes if outcome.fate == SURVIVED)
    yield from (f"survived: {mutant}" for mutant in survivors)
    fates = Counter(outcome.fate for outcome in outcomes)
    yield (
        f"mutants: {len(outcomes)}, {fates[KILLED]} killed, {fates[EQUIVALENT]} equivalent, {fates[SURVIVED]} survived"
    )


def _checks(outcomes: list[Outcome]) -> Iterator[str]:
    """Say by which check mutants died, and how long one took on average."""
    spent: dict[str, list[float]] = {}
    for outcome in outcomes:
        spent.setdefault(outcome.verdict.killed_by or "none", []).append(outcome.verdict.seconds)
    yield f"{'seen by':24}{'mutants':>10}{'s each':>10}"
    for check, seconds in sorted(spent.items(), key=lambda entry: -len(entry[1])):
        yield f"{check:24}{len(seconds):10}{sum(seconds) / len(seconds):10.2f}"
    yield ""


def _counts(title: str, outcomes: list[Outcome], group: Callable[[Outcome], str], rows: Iterable[str]) -> Iterator[str]:
    """Count the fates a row."""
    counts = Counter((group(outcome), outcome.fate) for outcome in outcomes)
    rows = [row for row in rows if any(counts[row, fate] for fate in (KILLED, SURVIVED, EQUIVALENT))]
    width = max(24, *(len(row) + 2 for row in rows)) if rows else 24
    yield f"{title:{width}}{KILLED:>10}{SURVIVED:>10}{EQUIVALENT:>12}"
    for row in rows:
        yield f"{row:{width}}{counts[row, KILLED]:10}{counts[row, SURVIVED]:10}{counts[row, EQUIVALENT]:12}"
    yield ""
