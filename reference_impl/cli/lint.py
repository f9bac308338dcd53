"""`genref lint`: what is wrong with recipe files, for people, for programs and for a pull request's annotations."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from reference_impl.config.findings import Finding


class Format(StrEnum):
    """How findings are printed."""

    text = "text"
    json = "json"
    github = "github"


def lint(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Recipes (YAML); their parents are read too.")],
    fix: Annotated[
        bool, typer.Option("--fix", help="Rewrite removed keys in the files first; all of them or none.")
    ] = False,
    output_format: Annotated[
        Format,
        typer.Option("--format", help="text: a line each. json: one list. github: annotations of a workflow run."),
    ] = Format.text,
) -> None:
    """Say what is wrong with recipes, with the line and what to write instead.

    Exit status 0 if there are warnings at most, 2 if there are errors.
    """
    from reference_impl.config.errors import ConfigError
    from reference_impl.config.fixing import fix_files
    from reference_impl.config.lint import lint as find

    findings: list[Finding] = []
    if fix:
        try:
            findings += fix_files(files)
        except ConfigError as error:
            findings += error.findings
    known = set(findings)
    findings += [finding for finding in find(files) if finding not in known]
    if text := _RENDER[output_format](findings, len(dict.fromkeys(files))):
        print(text)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(2)


def as_text(findings: Sequence["Finding"], files: int) -> str:
    """`FILE:LINE: severity: key: message`, and a last line that counts."""
    lines = [f"{f.place}: {f.severity}: {f.key + ': ' if f.key else ''}{f.message}" for f in findings]
    counts: Counter[str] = Counter(finding.severity for finding in findings)
    said = [_count(counts[word], word) for word in ("error", "warning")]
    said += [f"{counts['fixed']} fixed"] if counts["fixed"] else []
    return "\n".join([*lines, f"{_count(files, 'file')}: {', '.join(said)}"])


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def as_json(findings: Sequence["Finding"], files: int) -> str:
    """A list of objects with the fields of {class}`~reference_impl.config.findings.Finding`."""
    return json.dumps([asdict(finding) for finding in findings], indent=2)


def as_github(findings: Sequence["Finding"], files: int) -> str:
    """Workflow commands, which GitHub shows beside the line in a pull request."""
    kinds = {"error": "error", "warning": "warning", "fixed": "notice"}
    return "\n".join(
        f"::{kinds[f.severity]} {_properties(f)}::{_escape(f'{f.key}: {f.message}' if f.key else f.message)}"
        for f in findings
    )


def _properties(finding: "Finding") -> str:
    named = {"file": finding.path, "line": finding.line, "col": finding.column}
    values = {name: _escape(str(value)) for name, value in named.items() if value is not None}
    return ",".join(f"{name}={value.replace(':', '%3A').replace(',', '%2C')}" for name, value in values.items())


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


_RENDER = {Format.text: as_text, Format.json: as_json, Format.github: as_github}
