"""What each kind of fence must satisfy: the closed vocabulary of a page.

An evaluator takes a `Case` and returns what is wrong, or None. `EVALUATORS` names them all, and a kind that is not in
it fails: a page has no fence that is merely shown. To add a kind is to add a line there, and a test that shows it fail.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tomllib
import unittest
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from reference_impl.doctesting import console
from reference_impl.doctesting.fences import HIDDEN, INDENTED, RAW_HTML, UNLABELLED, Fence
from reference_impl.doctesting.matching import difference


def accept_any(data: Any) -> None:
    """Validate nothing: the default for YAML that has no schema."""


@dataclass(frozen=True, kw_only=True)
class Checks:
    """How a project wants its pages checked.

    `root` is where commands and code run. `pages` is the folder that Sphinx reads, for paths that begin with `/`.
    `validate_yaml` is given the data of each `yaml` fence and raises `ValueError` for what the project would refuse.
    """

    root: Path
    pages: Path
    commands: Collection[str] = frozenset({"genref", "python"})
    timeout_seconds: float = 180.0
    validate_yaml: Callable[[Any], None] = accept_any


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fence where it stands: its page, its neighbours, and the names that earlier fences of the page have defined."""

    fence: Fence
    path: Path
    checks: Checks
    before: Fence | None = None
    after: Fence | None = None
    namespace: dict[str, Any] = field(default_factory=dict)


type Evaluator = Callable[[Case], str | None]


def evaluate(case: Case) -> str | None:
    """Return what is wrong with a fence, or None."""
    evaluator = EVALUATORS.get(case.fence.kind)
    return _no_evaluator(case.fence.kind) if evaluator is None else evaluator(case)


_REASONS = {
    INDENTED: "use a fence, so that its language says how it is checked",
    UNLABELLED: "a fence names its language",
    HIDDEN: "a fence in a comment is neither shown nor run; remove it",
    RAW_HTML: "a listing in raw HTML is shown and not run; use a fence",
}


def _no_evaluator(kind: str) -> str:
    near = get_close_matches(kind, EVALUATORS, n=1)
    reason = _REASONS.get(kind) or (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(EVALUATORS)}")
    return f"no evaluator for {kind!r}: {reason}"


def run_python(case: Case) -> str | None:
    """Run a fence in the page's namespace; what it prints must be the `text` fence that follows, and nothing else."""
    # Empty lines above the code give tracebacks, and inspect.getsource, the line numbers of the page.
    source = "\n" * (case.fence.source_line - 1) + case.fence.source
    case.namespace.setdefault("__name__", "__page__")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(case.checks.root):
        try:
            exec(compile(source, str(case.path), "exec", dont_inherit=True), case.namespace)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Test runners skip on these and call it a success. A page has no way to be skipped.
            if isinstance(error, unittest.SkipTest) or not isinstance(error, Exception):
                return f"stopped by {type(error).__name__}: {error}"
            raise
    printed = out.getvalue()
    if case.after is None or case.after.kind != "text":
        return f"printed, but no text fence follows to show it:\n{printed}" if printed else None
    if not printed:
        return f"printed nothing, but the text fence on line {case.after.line} says that it does"
    return difference(printed, case.after.source)


def check_text(case: Case) -> str | None:
    """Accept a `text` fence only as the output of the `python` fence above, which has compared it."""
    if case.before is None or case.before.kind != "python":
        return "a text fence shows what the python fence right above it prints, and there is none"
    return None


def run_console(case: Case) -> str | None:
    """Run each `$ command` and compare what it prints."""
    checks = case.checks
    return console.run_fence(
        case.fence.source, root=checks.root, allowed=checks.commands, timeout_seconds=checks.timeout_seconds
    )


def check_yaml(case: Case) -> str | None:
    """Parse and validate a fence, and leave its data and text in `config` and `config_text` for the code below it."""
    if any(line.strip() == "..." for line in case.fence.source.split("\n")):
        return "a line '...' ends a YAML document; write the keys out, or a comment"
    try:
        data = yaml.safe_load(case.fence.source)
        with contextlib.chdir(case.checks.root):
            case.checks.validate_yaml(data)
    except (yaml.YAMLError, ValueError) as error:
        return f"bad YAML: {error}"
    case.namespace["config"], case.namespace["config_text"] = data, case.fence.source
    return None


def check_json(case: Case) -> str | None:
    """Parse a fence."""
    try:
        json.loads(case.fence.source)
    except ValueError as error:
        return f"bad JSON: {error}"
    return None


def check_toml(case: Case) -> str | None:
    """Parse a fence."""
    try:
        tomllib.loads(case.fence.source)
    except ValueError as error:
        return f"bad TOML: {error}"
    return None


def check_graphviz(case: Case) -> str | None:
    """Compile a diagram, and ask for words that say what it shows to those who cannot see it."""
    if not case.fence.options.get("alt"):
        return "a diagram needs an :alt: text"
    source = case.fence.source
    if case.fence.argument:
        file = _included(case)
        if not file.is_file():
            return f"no such file: {file}"
        source = file.read_text("utf-8")
    dot = shutil.which("dot")
    if dot is None:
        return "dot is not installed: it comes with graphviz"
    done = subprocess.run(
        [dot, "-Tsvg"], input=source, capture_output=True, text=True, timeout=case.checks.timeout_seconds, check=False
    )
    return f"dot refuses it: {done.stderr}" if done.returncode else None


def check_image(case: Case) -> str | None:
    """Look for the picture, and ask for words that say what it shows to those who cannot see it."""
    if not case.fence.options.get("alt"):
        return "a picture needs an :alt: text"
    return check_literalinclude(case)


def check_literalinclude(case: Case) -> str | None:
    """Look for the included file; Sphinx checks the part that is asked for."""
    file = _included(case)
    return None if file.is_file() else f"no such file: {file}"


def check_raw(case: Case) -> str | None:
    """Accept raw HTML as long as it shows no listing."""
    return _REASONS[RAW_HTML] if "<pre" in case.fence.source or "<code" in case.fence.source else None


def leave_to_sphinx(case: Case) -> str | None:
    """Accept what a site build with warnings as errors checks: targets, names, formulas."""
    return None


def _included(case: Case) -> Path:
    """Resolve a path as Sphinx does: from the page's folder, or from the site's when it begins with a slash."""
    name = case.fence.argument
    folder = case.checks.pages if name.startswith("/") else case.path.parent
    return Path(os.path.normpath(folder / name.lstrip("/")))


EVALUATORS: dict[str, Evaluator] = {
    "python": run_python,
    "text": check_text,
    "console": run_console,
    "yaml": check_yaml,
    "json": check_json,
    "toml": check_toml,
    "{graphviz}": check_graphviz,
    "{image}": check_image,
    "{literalinclude}": check_literalinclude,
    "{raw}": check_raw,
    "{toctree}": leave_to_sphinx,
    "{math}": leave_to_sphinx,
    "{autodoc2-object}": leave_to_sphinx,
    "{autodoc2-summary}": leave_to_sphinx,
    "{metrics-table}": leave_to_sphinx,
    "{alias-table}": leave_to_sphinx,
}
