"""Reads one recipe file and the parents that it names with `defaults:` into layers, weakest first."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reference_impl.config.errors import ConfigError
from reference_impl.config.findings import Finding, file_error
from reference_impl.config.parsing import Document, parse_yaml, position


@dataclass(frozen=True)
class Layer:
    """One mapping of a recipe and where it came from.

    `source` is what an error calls it: the path as it was reached, or `command line`. `inherited` says that a `defaults:`
    brought it in, so that nobody who uses the recipe wrote it there on purpose. `lines` holds the line of each dotted key,
    and `problems` what is wrong with the text itself, such as a key written twice.
    """

    source: str
    tree: dict[str, Any]
    inherited: bool = False
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[Finding, ...] = ()


@dataclass
class Files:
    """Files that were read, by path: a hundred recipes share a handful of parents."""

    documents: dict[Path, Document] = field(default_factory=dict)

    def layers(self, path: Path, chain: tuple[Path, ...] = ()) -> list[Layer]:
        """The layers of the recipe at `path`: those of its parents in the order in which it names them, then its own.

        `chain` holds the files that led here, the recipe that the user named first; whoever calls from outside leaves it
        out. Raises {class}`ConfigError` for a file that is missing or is not a YAML mapping, and for parents that go in a
        circle.
        """
        return self.layers_of(self.read(path), path, chain)

    def layers_of(
        self, document: Document, path: Path, chain: tuple[Path, ...] = (), source: str | None = None
    ) -> list[Layer]:
        """The same for a text that is at hand and would lie at `path`; errors call it `source`, by default the path."""
        source = source or str(path)
        tree, lines = dict(document.value), document.lines
        at = lines.get("defaults")
        inherited: list[Layer] = []
        faults: list[Finding] = []
        for number, parent in enumerate(_parent_paths(path, source, tree.pop("defaults", None), at)):
            line = lines.get(f"defaults[{number}]", at)
            try:
                _refuse_cycle(parent, (*chain, path), source, line)
                self._refuse_missing(parent, source, line)
                inherited += self.layers(parent, (*chain, path))
            except ConfigError as error:
                faults += [finding for finding in error.findings if finding not in faults]
        if faults:
            raise ConfigError.of(faults)
        return [*inherited, Layer(source, tree, bool(chain), lines, document.problems)]

    def read(self, path: Path) -> Document:
        """The top level of one file. An empty file is an empty mapping: it asks for every default."""
        if path not in self.documents:
            self.documents[path] = as_mapping(parse_yaml(read_text(path), str(path)), str(path))
        return self.documents[path]

    def _refuse_missing(self, parent: Path, named_by: str, line: int | None) -> None:
        """Say which file asks for a parent that is not there, and where."""
        if parent not in self.documents and not parent.is_file():
            what = "a folder" if parent.is_dir() else "no such file"
            raise ConfigError.of([file_error(named_by, f"{parent}: {what}", "file", line=line, key="defaults")])


def as_mapping(document: Document, source: str) -> Document:
    """The document, if its top level is a mapping or nothing."""
    if document.value is None:
        return Document({}, {}, document.problems)
    if not isinstance(document.value, dict):
        kind = type(document.value).__name__
        message = f"the top level is a {kind}; expected a mapping of keys to values"
        raise ConfigError.of([file_error(source, message, "yaml", line=1)])
    return document


def read_text(path: Path) -> str:
    """The text of a file; raises {class}`ConfigError` for one that is not there or is not UTF-8."""
    source = str(path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        readable = error.object[: error.start].decode()
        line, column = position(readable, len(readable))
        raise ConfigError.of([file_error(source, "not UTF-8 text", "file", line=line, column=column)]) from error
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ConfigError.of([file_error(source, what, "file")]) from error
    except ValueError as error:  # a null byte in the name
        raise ConfigError.of([file_error(source, f"cannot be read ({error})", "file")]) from error


def _refuse_cycle(parent: Path, chain: tuple[Path, ...], source: str, line: int | None) -> None:
    if parent.resolve() in [seen.resolve() for seen in chain]:
        circle = " -> ".join(str(step) for step in (*chain, parent))
        message = f"these files inherit from each other: {circle}"
        raise ConfigError.of([file_error(source, message, "defaults", line=line, key="defaults")])


def _parent_paths(path: Path, source: str, defaults: Any, line: int | None) -> list[Path]:
    """What `defaults:` names, found from the folder of the file that names it."""
    names = [] if defaults is None else defaults if isinstance(defaults, list) else [defaults]
    if not all(isinstance(name, str) and name for name in names):
        message = f"{defaults!r} is not a path or a list of paths"
        raise ConfigError.of([file_error(source, message, "defaults", line=line, key="defaults")])
    # Not `resolve()`: an error should show the path that the user can find in the file, links and all.
    return [Path(os.path.normpath(path.parent / name)) for name in names]
