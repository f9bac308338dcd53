"""Rewrites removed keys in a recipe's text and leaves every other character as it was, comments included.

The text is edited where the parser found the key, one key at a time, and read again after each edit: if the tree is not
the old one with that key changed, nothing is done. So the layout of a file needs no model of its own here.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_impl.config.errors import ConfigError
from reference_impl.config.findings import Finding
from reference_impl.config.parsing import Document, Place, parse_yaml
from reference_impl.config.reading import read_text
from reference_impl.config.removed import REMOVED_KEYS, RemovedKey
from reference_impl.config.schema import MCORE_KEY
from reference_impl.config.trees import MISSING, lookup, with_value, without

_BOM = "\ufeff"


@dataclass(frozen=True)
class Fix:
    """A file's text after the rewriting, and one finding for each key that was rewritten."""

    path: Path
    text: str
    done: tuple[Finding, ...]


def fix_files(paths: Sequence[Path]) -> list[Finding]:
    """Rewrite the removed keys of these files; files without one are not touched.

    Raises {class}`~reference_impl.config.errors.ConfigError` with every key that cannot be carried over and every file
    that cannot be read or written; then none of the files is changed.
    """
    fixes: list[Fix] = []
    faults: list[Finding] = []
    for path in dict.fromkeys(paths):
        try:
            fixes.append(fix_text(path, read_text(path)))
        except ConfigError as error:
            faults += error.findings
    if faults:
        raise ConfigError.of(faults)
    _write([fix for fix in fixes if fix.done])
    return [finding for fix in fixes for finding in fix.done]


def fix_text(path: Path, text: str) -> Fix:
    """The text with its removed keys rewritten; raises {class}`ConfigError` if one cannot be."""
    done: list[Finding] = []
    faults: list[Finding] = []
    first = document = parse_yaml(text, str(path))
    if document.problems:
        raise ConfigError.of(document.problems)
    for name in [name for name in REMOVED_KEYS if f"{MCORE_KEY}.{name}" in document.places]:
        key = f"{MCORE_KEY}.{name}"
        line = first.places[key].line
        try:
            text, said = _rewrite(text, document, name, REMOVED_KEYS[name])
            document = parse_yaml(text, str(path))
            done.append(Finding(str(path), line, None, "fixed", key, said, "fixed"))
        except _ByHandError as error:
            message = f"not rewritten: {error}; nothing is changed"
            faults.append(Finding(str(path), line, None, "error", key, message, "not-fixed"))
    if faults:
        raise ConfigError.of(faults)
    return Fix(path, text, tuple(sorted(done, key=lambda finding: finding.line or 0)))


class _ByHandError(Exception):
    """A key that only a person can rewrite; the message says why."""


def _rewrite(text: str, document: Document, name: str, removed: RemovedKey) -> tuple[str, str]:
    """The text without this key, or with what it is now, and what was done."""
    key = f"{MCORE_KEY}.{name}"
    place, value = document.places[key], lookup(document.value, key)
    written = text[place.start : place.end]
    if "\n" in written or isinstance(value, dict | list):
        raise _ByHandError("the value is not on the line of its key")
    new = _replacement(document, value, removed)
    if new is None:
        edited, said = _deleted(text, document, place), f"deleted {written}"
        expected = without(document.value, key)
    else:
        edited = f"{text[: place.start]}{new[0]}: {new[1]}{text[place.end :]}"
        said = f"{written} is now {new[0]}: {new[1]}"
        expected = with_value(without(document.value, key), f"{MCORE_KEY}.{new[0]}", new[1])
    with contextlib.suppress(ConfigError):
        if parse_yaml(edited, "").value == expected:
            return edited, said
    raise _ByHandError("other keys share it through an alias or its layout is unusual; rewrite it by hand")


def _replacement(document: Document, value: Any, removed: RemovedKey) -> tuple[str, str] | None:
    """The key and the value to write instead; `None` if the key is only to go."""
    if removed.rewrite is None:
        return None
    new = removed.rewrite.get(value) if isinstance(value, bool) else None
    if new is None:
        raise _ByHandError(f"only {' and '.join(map(str, removed.rewrite)).lower()} can be carried over")
    there = lookup(document.value, f"{MCORE_KEY}.{new[0]}")
    if there not in (MISSING, new[1]):
        raise _ByHandError(f"{new[0]}: {there} is there already and says otherwise")
    return None if there == new[1] else new


def _deleted(text: str, document: Document, place: Place) -> str:
    """The text without the key at `place`. A comment beside it gets a line of its own."""
    if place.flow:
        return _deleted_from_braces(text, place)
    start = text.rfind("\n", 0, place.start) + 1
    end = text.find("\n", place.end) + 1 or len(text)
    margin, rest = text[start : place.start], text[place.end : end]
    kept = margin + rest.lstrip(" \t") if rest.strip() else ""
    if len(lookup(document.value, MCORE_KEY)) > 1:
        return text[:start] + kept + text[end:]
    # The last key of the section: without the braces the section would be null.
    section = document.places[MCORE_KEY]
    colon = text.index(":", section.start) + 1
    return f"{text[:colon]} {{}}{text[colon:start]}{kept}{text[end:]}"


def _deleted_from_braces(text: str, place: Place) -> str:
    before, after = text[: place.start], text[place.end :]
    if after.lstrip().startswith(","):
        after = after.lstrip()[1:].lstrip(" \t")
    elif before.rstrip().endswith(","):
        before = before.rstrip()[:-1]
    if not before.rpartition("\n")[2].strip() and "\n" in before and not after.partition("\n")[0].strip():
        before, after = before.rpartition("\n")[0] + "\n", after.partition("\n")[2]
    return before + after


def _write(fixes: Sequence[Fix]) -> None:
    """Put every new text beside its file first and rename afterwards, so that a full disk changes none of them."""
    beside: list[tuple[str, Path]] = []
    try:
        for fix in fixes:
            target = fix.path.resolve()
            handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            beside.append((name, target))
            with os.fdopen(handle, "wb") as file:
                bom = _BOM if target.read_bytes().startswith(_BOM.encode()) else ""
                file.write((bom + fix.text).encode())
            shutil.copymode(target, name)
        while beside:
            os.replace(*beside[0])
            del beside[0]
    finally:
        for name, _ in beside:
            with contextlib.suppress(OSError):
                os.unlink(name)
