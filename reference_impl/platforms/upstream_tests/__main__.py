"""Run Megatron-LM's inference unit tests on the CPU platform: `python -m reference_impl.platforms.upstream_tests DIR`.

Prints a line a file and, below it, what nothing explains. Exits with 1 if anything is not, and with 2 where the suite cannot run.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from reference_impl.platforms.upstream_tests import record, runner
from reference_impl.platforms.upstream_tests.outcomes import FileResult, stale


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; returns the exit status."""
    options = _options().parse_args(arguments)
    checkout = options.checkout.resolve()
    trouble = runner.why_not(checkout)
    chosen = [] if trouble else runner.files(checkout, options.words)
    if not trouble and not chosen:
        trouble = f"no file of {runner.SUITE} has {' or '.join(options.words)} in its path"
    if trouble or (options.write and options.words):
        print(trouble or "--write is for a run of the whole suite: leave out the words", file=sys.stderr)
        return 2
    results = []
    for result in runner.run(checkout, chosen):
        print("\n".join([line(result), *problems_of(result)]), flush=True)
        results.append(result)
    # A part of the suite meets a part of the rules.
    unmet = [] if options.words else [f"no test meets this rule any more: {rule}" for rule in stale(results)]
    print("\n".join(["", *summary(results), *unmet]))
    if options.write:
        record.write(record.record_of(results), options.write)
    return 1 if unmet or any(result.unexplained for result in results) else 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="upstream-tests", description="Upstream's tests on the CPU platform.")
    parser.add_argument("checkout", type=Path, metavar="DIR", help="a checkout of Megatron-LM")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only files whose path has one of these")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables between the marks on this page")
    return parser


def line(result: FileResult) -> str:
    """One file: its name, three counts, and the skips by reason."""
    counts = f"passed {result.passed:3}  failed {len(result.unexplained):3}  skipped {result.skipped.total():3}"
    why = ", ".join(f"{reason} {count}" for reason, count in result.skipped.most_common())
    return f"{result.file:79} {counts}  {why}".rstrip()


def summary(results: Iterable[FileResult]) -> list[str]:
    """All files together."""
    results = list(results)
    skipped: Counter[str] = sum((result.skipped for result in results), Counter())
    failed = sum(len(result.unexplained) for result in results)
    lines = [f"{count:5} {reason}" for reason, count in skipped.most_common()]
    passed = sum(result.passed for result in results)
    return [f"passed {passed}, failed {failed} (unexplained), skipped {skipped.total()}:", *lines]


def problems_of(result: FileResult) -> list[str]:
    """A line for each test of a file that nothing explains."""
    return [f"  {each.outcome} without a reason: {each.test}: {each.message[:300]}" for each in result.unexplained]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
