"""Run the checks of a page that was changed, the cheap ones first, until one sees the change.

Each mutant has processes of its own, forked from one that has read the site, imported what pages import and run the
examples above the change. So no mutant pays for that, none can spoil the next, and one that hangs can be ended.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from reference_impl.doctesting.case import Case, Checks
from reference_impl.doctesting.evaluators import EVALUATORS, evaluate
from reference_impl.doctesting.fences import PROSE
from reference_impl.doctesting.mutation.affected import affected
from reference_impl.doctesting.mutation.forking import NoAnswerError, apart, can_fork
from reference_impl.doctesting.mutation.mutants import Mutant
from reference_impl.doctesting.mutation.site import Site
from reference_impl.doctesting.mutation.workspace import Workspace
from reference_impl.doctesting.pages import page_examples

# Evaluators that read a block and run nothing.
_READ_ONLY = frozenset({"yaml", "json", "toml", PROSE})

# The checks in their order, and the two other ways in which a mutant is noticed.
READ, SITE, RUN, TIME_OUT, DIED = "read", "site", "run", "time-out", "died"


@dataclass(frozen=True)
class Verdict:
    """What became of a page: the check that saw the change, or None, what it said, and after how many seconds."""

    killed_by: str | None
    message: str
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A mutant that its page's examples have to decide: those from `first` to before `stop` are to be run."""

    mutant: Mutant
    first: int
    stop: int
    seconds: float
    limit_seconds: float


class Bench:
    """One worker's copy of the project, with its site read."""

    def __init__(self, checks: Checks, folder: Path) -> None:
        self._root, self.space = checks.root, Workspace(checks.root, folder)
        pages, conf = self._copied(checks.pages), self._copied(checks.conf or checks.pages)
        scratch = self._copied(checks.scratch) if checks.scratch else None
        self.checks = replace(checks, root=self.space.root, pages=pages, conf=conf, scratch=scratch)
        tempfile.tempdir = os.environ["TMPDIR"] = str(self.space.scratch)
        self.site = Site(pages=pages, conf=conf, folder=folder)
        # What reading the site has left behind, autodoc's pages for example, belongs to it.
        self.space.keep()
        self._warm_up()

    def _warm_up(self) -> None:
        """Fill the caches of the checks that run nothing, and spare the forked processes from collecting what is here."""
        for path in self.checks.pages.rglob("*.md"):
            _run(filter(_is_read_only, self._cases(path, path.read_text("utf-8"))))
        self.space.restore()
        gc.collect()
        gc.freeze()

    def unchanged(self, page: str) -> Verdict:
        """Run everything on a page as it is: what fails there would pass for a check that noticed a change."""
        if self.site.warnings:
            return Verdict(SITE, self.site.warnings.split("\n")[0].replace(f"{self.space.root}/", ""), 0.0)
        path, text = self._read(page)
        return self._judged(lambda: _ran(self._cases(path, text)), 10 * self.checks.timeout_seconds)[0]

    def look_at(self, mutant: Mutant, limit_seconds: float) -> Verdict | Trial:
        """Do what runs no example; return what is left to do where that saw nothing."""
        path, text = self._read(mutant.page)
        changed = mutant.edit.apply(text)
        path.write_text(changed, encoding="utf-8")

        def job() -> list[Any]:
            before, after = self._cases(path, text), self._cases(path, changed)
            problem = _run(filter(_is_read_only, after))
            # Data may need a file that code above it writes, and then says nothing before that has run.
            if problem and not _run(filter(_is_read_only, before)):
                return [READ, problem, None]
            problem = _guarded(lambda: self.site.warnings_of(path))
            return [SITE, problem, None] if problem else [None, "", affected(before, after)]

        with self.site.left_as_read(path):
            verdict, span = self._judged(job, limit_seconds)
        if span is None:
            return verdict
        first, stop = span
        return Trial(mutant, first, stop, verdict.seconds, limit_seconds)

    def run(self, page: str, trials: Sequence[Trial]) -> list[Verdict]:
        """Run the examples of one page's mutants, those above each change only once for all of them."""
        path, text = self._read(page)

        def job() -> list[Any]:
            return self._along(path, text, trials)

        try:
            answers = apart(job, sum(trial.limit_seconds for trial in trials) + self.checks.timeout_seconds)
        except (TimeoutError, NoAnswerError):
            answers = [None] * len(trials)
        self.space.restore()
        return [
            Verdict(*answer) if answer else self._from_the_top(path, text, trial)
            for answer, trial in zip(answers, trials, strict=True)
        ]

    def _along(self, path: Path, text: str, trials: Sequence[Trial]) -> list[Any]:
        """Run in a forked process: go down the page as it is, and before each example try the mutants that begin there.

        A mutant for which this process cannot be copied gets None.
        """
        answers: list[Any] = [None] * len(trials)
        last = max(trial.first for trial in trials)
        for at, case in enumerate(self._cases(path, text)):
            here = [n for n, trial in enumerate(trials) if trial.first == at]
            if here and not can_fork():
                return answers
            if here:
                self.space.keep()
            for n in here:
                verdict = self._try(path, text, trials[n], case)
                answers[n] = [verdict.killed_by, verdict.message, trials[n].seconds + verdict.seconds]
            if at == last or _run([case]):
                return answers
        return answers

    def _try(self, path: Path, text: str, trial: Trial, here: Case) -> Verdict:
        """Run the examples of a mutant in a copy of this process, which has run those above them."""

        def job() -> list[Any]:
            cases = self._cases(path, trial.mutant.edit.apply(text), here.namespace)[trial.first : trial.stop]
            for case in cases:
                case.proved.update(here.proved)
            return _ran(cases)

        return self._judged(job, trial.limit_seconds)[0]

    def _from_the_top(self, path: Path, text: str, trial: Trial) -> Verdict:
        """Run the examples of a mutant with all that come before."""
        changed = trial.mutant.edit.apply(text)
        verdict, _ = self._judged(lambda: _ran(self._cases(path, changed)[: trial.stop]), trial.limit_seconds)
        return replace(verdict, seconds=verdict.seconds + trial.seconds)

    def _judged(self, job: Callable[[], list[Any]], limit_seconds: float) -> tuple[Verdict, Any]:
        """Do a job in a process of its own, bring back what it has changed, and make a verdict of what it says.

        A job returns the check that saw something, what it said, and what else it wants to say.
        """
        began, more = time.monotonic(), None
        try:
            killed_by, message, more = apart(job, limit_seconds)
        except TimeoutError:
            killed_by, message = TIME_OUT, f"still running after {limit_seconds:.0f} s"
        except NoAnswerError:
            killed_by, message = DIED, "its process ended without an answer"
        self.space.restore()
        return Verdict(killed_by, message, time.monotonic() - began), more

    def _copied(self, original: Path) -> Path:
        return self.space.root / original.relative_to(self._root)

    def _read(self, page: str) -> tuple[Path, str]:
        path = self.space.root / page
        return path, path.read_text("utf-8")

    def _cases(self, path: Path, text: str, namespace: dict[str, Any] | None = None) -> list[Case]:
        return list(page_examples(path, text, self.checks, namespace))


def _run(cases: Iterable[Case]) -> str | None:
    """Run examples in order; return what is wrong with the first that fails."""
    for case in cases:
        problem = _guarded(partial(evaluate, case))
        if problem:
            return f"line {case.fence.line}: {problem}"
    return None


def _ran(cases: list[Case]) -> list[Any]:
    """Run examples in order, as a job."""
    problem = _run(cases)
    return [RUN if problem else None, problem or "", None]


def _guarded(check: Callable[[], str | None]) -> str | None:
    """Return what a check says; that it fails says something, too."""
    try:
        return check()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def _is_read_only(case: Case) -> bool:
    return case.fence.kind in _READ_ONLY or case.fence.kind not in EVALUATORS
