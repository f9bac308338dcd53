"""The mutants that no check can see, each with the reason: a list in a file, held to be no longer than it has to be."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from reference_impl.doctesting.mutation.mutants import KINDS, Mutant


@dataclass(frozen=True, kw_only=True)
class Excuse:
    """A reason why mutants may survive, and which: those that agree with all that is given.

    `before` and `after` are the changed text to the letter, `pattern` is a regular expression found in the line that is
    changed.
    """

    reason: str
    page: str | None = None
    kind: str | None = None
    before: str | None = None
    after: str | None = None
    pattern: str | None = None

    def covers(self, mutant: Mutant, line: str) -> bool:
        """Say whether the mutant, which changes `line`, is one of those."""
        given = (self.page, self.kind, self.before, self.after)
        found = (mutant.page, mutant.kind, mutant.edit.before, mutant.edit.after)
        alike = all(want is None or want == got for want, got in zip(given, found, strict=True))
        return alike and (self.pattern is None or re.search(self.pattern, line) is not None)

    def __str__(self) -> str:
        """Name what the entry covers."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "reason"}
        return ", ".join(f"{name} = {value!r}" for name, value in given.items() if value is not None)


def read_excuses(file: Path) -> list[Excuse]:
    """Read the tables `[[equivalent]]` of a TOML file; none when there is no file. `ValueError` names what is wrong."""
    if not file.exists():
        return []
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    entries = tables.pop("equivalent", [])
    if tables or not isinstance(entries, list):
        raise ValueError(f"{file}: only tables [[equivalent]] are known, not {', '.join(tables) or 'one value'}")
    return [_excuse(file, number, entry) for number, entry in enumerate(entries, 1)]


def _excuse(file: Path, number: int, entry: dict[str, object]) -> Excuse:
    known = {field.name for field in fields(Excuse)}
    where = f"{file}: entry {number}"
    for key, value in entry.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}; known are {', '.join(sorted(known))}")
        if not isinstance(value, str):
            raise ValueError(f"{where}: {key} is {value!r}, and has to be text")
    if not entry.get("reason"):
        raise ValueError(f"{where}: no reason")
    if len(entry) == 1:
        raise ValueError(f"{where}: it covers everything; say which page, kind, before, after or pattern")
    if entry.get("kind", KINDS[0]) not in KINDS:
        raise ValueError(f"{where}: kind {entry['kind']!r} is none of {', '.join(KINDS)}")
    try:
        re.compile(str(entry.get("pattern", "")))
    except re.error as error:
        raise ValueError(f"{where}: pattern: {error}") from None
    return Excuse(**entry)  # type: ignore[arg-type]


def first_that_covers(excuses: Iterable[Excuse], mutant: Mutant, line: str) -> Excuse | None:
    """Return the first entry for a mutant, None when there is none."""
    return next((excuse for excuse in excuses if excuse.covers(mutant, line)), None)
