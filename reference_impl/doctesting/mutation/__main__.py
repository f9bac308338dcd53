"""Change one thing at a time on the pages of a site, and name what no check notices.

`python -m reference_impl.doctesting.mutation --checks conftest:CHECKS` tries a sample; the exit status is 1 when a mutant
survives for which there is no reason, and 2 when nothing could be said. `make mutate-docs` calls it.
"""

import argparse
import importlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from dataclasses import dataclass
from itertools import batched
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.mutation.bench import Bench, Trial, Verdict
from reference_impl.doctesting.mutation.excuses import Excuse, first_that_covers, read_excuses
from reference_impl.doctesting.mutation.mutants import Mutant, mutants, sample
from reference_impl.doctesting.mutation.report import EQUIVALENT, SURVIVED, Outcome, report

# The bench of a worker; each worker is a process of its own.
_bench: Bench


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be tried: the project's checks, its pages, the mutants chosen of them, and how."""

    checks: Checks
    texts: dict[str, str]
    chosen: list[Mutant]
    excuses: list[Excuse]
    workers: int
    grace_seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        plan = _plan(options)
    except (ValueError, ImportError, AttributeError) as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    outcomes, broken = _carry_out(plan)
    print("\n".join(report(outcomes)))
    print("\n".join(_not_tried(broken)), end="\n" if broken else "")
    is_full = options.all and not options.page and not broken
    used = {outcome.excuse for outcome in outcomes if outcome.fate == EQUIVALENT}
    unused = [excuse for excuse in plan.excuses if excuse not in used] if is_full else []
    for excuse in unused:
        print(f"excuses nothing: {excuse}")
    if broken:
        return 2
    return int(bool(unused) or any(outcome.fate == SURVIVED for outcome in outcomes))


def _not_tried(broken: dict[str, Verdict]) -> Iterator[str]:
    """Say once what is wrong; a warning of the site concerns all of its pages."""
    pages: dict[str, list[str]] = {}
    for page, verdict in sorted(broken.items()):
        pages.setdefault(verdict.message, []).append(page)
    for message, names in pages.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"not tried: {names[0]}{more}, which {'fail' if more else 'fails'} unchanged: {message}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reference_impl.doctesting.mutation", description=__doc__)
    parser.add_argument("--checks", required=True, metavar="MODULE:NAME", help="the project's Checks")
    parser.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="import it once, for all pages"
    )
    parser.add_argument("--excuses", default=None, type=Path, help="default: equivalent-mutants.toml beside the pages")
    parser.add_argument("--page", action="append", default=[], help="only this page, relative to the root")
    parser.add_argument("--count", default=300, type=int, help="how many mutants to choose (default: %(default)s)")
    parser.add_argument("--seed", default=0, type=int, help="which of them are chosen (default: %(default)s)")
    parser.add_argument("--all", action="store_true", help="try every mutant")
    parser.add_argument("--workers", default=2, type=int, help="default: %(default)s")
    parser.add_argument(
        "--grace",
        default=10.0,
        type=float,
        help="seconds beyond three times what its page takes (default: %(default)s)",
    )
    return parser


def _plan(options: argparse.Namespace) -> Plan:
    """Import what the pages will, read them, and choose the mutants."""
    # Before the first import that could start threads: a forked process does not get them, and waits for them for ever.
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in options.preload:
        importlib.import_module(module)
    module, _, name = options.checks.partition(":")
    checks = getattr(importlib.import_module(module), name)
    if not isinstance(checks, Checks):
        raise ValueError(f"--checks {options.checks}: a {type(checks).__name__} and no Checks")
    texts = dict(_pages(checks, options.page))
    found = [mutant for page, text in texts.items() for mutant in mutants(page, text)]
    return Plan(
        checks=checks,
        texts=texts,
        chosen=found if options.all else sample(found, options.count, options.seed),
        excuses=read_excuses(options.excuses or checks.pages / "equivalent-mutants.toml"),
        workers=options.workers,
        grace_seconds=options.grace,
    )


def _pages(checks: Checks, only: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the pages of a site with their text, but for those in folders whose name begins with `_`.

    A file beside the site has no roles, so that nothing binds its prose.
    """
    found = {path.relative_to(checks.root).as_posix(): path for path in sorted(checks.pages.rglob("*.md"))}
    found = {page: path for page, path in found.items() if not any(part[0] == "_" for part in page.split("/"))}
    unknown = [page for page in only if page not in found]
    if unknown:
        raise ValueError(f"--page {unknown[0]}: no such page; known are {', '.join(found)}")
    for page in only or found:
        yield page, found[page].read_text("utf-8")


def _carry_out(plan: Plan) -> tuple[list[Outcome], dict[str, Verdict]]:
    """Run the pages as they are and then the mutants; return what became of the mutants, and the pages that fail."""
    pages = sorted({mutant.page for mutant in plan.chosen})
    with (
        tempfile.TemporaryDirectory(prefix="mutation-") as folder,
        ProcessPoolExecutor(plan.workers, get_context("fork"), _set_up, (plan.checks, folder)) as pool,
    ):
        runs = {pool.submit(_run_unchanged, page): page for page in pages}
        with tqdm(total=len(runs), desc="pages as they are", unit="page") as bar:
            as_is = {}
            for run in as_completed(runs):
                as_is[runs[run]] = run.result()
                bar.update()
        sound = {page: verdict.seconds for page, verdict in as_is.items() if verdict.killed_by is None}
        outcomes = []
        # The slowest first, so that no worker is left alone with them at the end.
        chosen = sorted(
            (mutant for mutant in plan.chosen if mutant.page in sound), key=lambda mutant: -sound[mutant.page]
        )
        with tqdm(total=len(chosen), desc="mutants", unit="mutant") as bar:
            for mutant, verdict in _judge(pool, chosen, lambda page: plan.grace_seconds + 3 * sound[page]):
                outcomes.append(_outcome(mutant, verdict, plan))
                bar.set_postfix(survived=sum(outcome.fate == SURVIVED for outcome in outcomes), refresh=False)
                bar.update()
    return outcomes, {page: verdict for page, verdict in as_is.items() if verdict.killed_by is not None}


def _judge(
    pool: ProcessPoolExecutor, chosen: list[Mutant], limit_seconds: Callable[[str], float]
) -> Iterator[tuple[Mutant, Verdict]]:
    """Yield the mutants with their verdicts as they come; the examples of a page are run when all its mutants are read."""
    looks = {pool.submit(_look_at, mutant, limit_seconds(mutant.page)): mutant for mutant in chosen}
    left = Counter(mutant.page for mutant in chosen)
    trials: dict[str, list[Trial]] = {}
    runs: dict[Future[list[Verdict]], list[Trial]] = {}
    pending: set[Future[Any]] = set(looks)
    while pending:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            if future in runs:
                yield from zip((trial.mutant for trial in runs[future]), future.result(), strict=True)
                continue
            page = looks[future].page
            result = future.result()
            if isinstance(result, Trial):
                trials.setdefault(page, []).append(result)
            else:
                yield looks[future], result
            left[page] -= 1
            if not left[page]:
                # In parts, for the sake of the other worker: what comes above a part is run for each of them.
                for part in batched(sorted(trials.pop(page, []), key=lambda trial: trial.first), 25):
                    runs[run := pool.submit(_run, page, list(part))] = list(part)
                    pending.add(run)


def _outcome(mutant: Mutant, verdict: Verdict, plan: Plan) -> Outcome:
    line = plan.texts[mutant.page].split("\n")[mutant.line - 1]
    return Outcome(mutant, verdict, first_that_covers(plan.excuses, mutant, line))


def _set_up(checks: Checks, folder: str) -> None:
    global _bench
    _bench = Bench(checks, Path(folder) / str(os.getpid()))


def _run_unchanged(page: str) -> Verdict:
    return _bench.unchanged(page)


def _look_at(mutant: Mutant, limit_seconds: float) -> Verdict | Trial:
    return _bench.look_at(mutant, limit_seconds)


def _run(page: str, trials: list[Trial]) -> list[Verdict]:
    return _bench.run(page, trials)


if __name__ == "__main__":
    sys.exit(main())
