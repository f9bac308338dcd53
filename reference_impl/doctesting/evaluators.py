"""What each kind of fence must satisfy: the closed vocabulary of a page.

An evaluator takes a `Case` and returns what is wrong, or None. `EVALUATORS` names them all, and a kind that is not in
it fails: a page has no fence that is merely shown. To add a kind is to add a line there, and a test that shows it fail.
"""

import shutil
import subprocess
from difflib import get_close_matches

from reference_impl.doctesting import console
from reference_impl.doctesting.case import Case, Evaluator, included_file
from reference_impl.doctesting.data_fences import as_file, check_json, check_toml, check_yaml
from reference_impl.doctesting.fences import HIDDEN, INDENTED, PROSE, RAW_HTML, UNLABELLED, VALUE
from reference_impl.doctesting.included import check_literalinclude
from reference_impl.doctesting.python_fences import check_text, run_python, run_session
from reference_impl.doctesting.values import check_value

_REASONS = {
    INDENTED: "use a fence, so that its language says how it is checked",
    UNLABELLED: "a fence names its language",
    HIDDEN: "a fence in a comment is neither shown nor run; remove it",
    RAW_HTML: "a listing in raw HTML is shown and not run; use a fence",
}

# Names that highlighters take for a language and that look nothing like the one we know.
_SHORT = {"py": "python", "yml": "yaml", "sh": "console", "bash": "console", "shell": "console"}


def evaluate(case: Case) -> str | None:
    """Return what is wrong with a fence, or None, and then note in `case.proved` that it was found right."""
    kind, fence = case.fence.kind, case.fence
    evaluator = leave_to_sphinx if kind[1:-1] in case.checks.directives else EVALUATORS.get(kind)
    if evaluator is None:
        return _no_evaluator(case)
    if any(VALUE in text for text in (fence.argument, *fence.options.values())):
        return "a value in a title or an option is not compared; write it in the text"
    problem = evaluator(case)
    if problem is None:
        case.proved.add(fence.line)
    return problem


def _no_evaluator(case: Case) -> str:
    kind = case.fence.kind
    known = [name for name in EVALUATORS if name not in {PROSE, VALUE}]
    known += [f"{{{name}}}" for name in sorted(case.checks.directives)]
    near = _SHORT.get(kind) or next(iter(get_close_matches(kind, known, n=1)), None)
    reason = _REASONS.get(kind) or (f"did you mean {near!r}?" if near else f"known are {', '.join(known)}")
    return f"no evaluator for {kind!r}: {reason}"


def run_console(case: Case) -> str | None:
    """Run each `$ command` and compare what it prints."""
    checks = case.checks
    return console.run_fence(
        case.fence.source, root=checks.root, allowed=checks.commands, timeout_seconds=checks.timeout_seconds
    )


def check_graphviz(case: Case) -> str | None:
    """Compile a diagram, and ask for words that say what it shows to those who cannot see it."""
    if not case.fence.options.get("alt"):
        return "a diagram needs an :alt: text"
    source = case.fence.source
    if case.fence.argument:
        file = included_file(case)
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
    file = included_file(case)
    return None if file.is_file() else f"no such file: {file}"


def check_raw(case: Case) -> str | None:
    """Accept raw HTML as long as it shows no listing."""
    return _REASONS[RAW_HTML] if "<pre" in case.fence.source or "<code" in case.fence.source else None


def check_prose(case: Case) -> str | None:
    """Collect what the project's own check finds wrong with the prose of the page, a line each."""
    found = [f"line {line}: {message}" for line, message in case.checks.check_prose(case.fence.source)]
    return "\n".join(found) or None


def leave_to_sphinx(case: Case) -> str | None:
    """Accept what a site build with warnings as errors checks: targets, names, formulas."""
    return None


EVALUATORS: dict[str, Evaluator] = {
    "python": run_python,
    "text": check_text,
    "pycon": run_session,
    "console": run_console,
    "yaml": as_file(check_yaml),
    "json": as_file(check_json),
    "toml": as_file(check_toml),
    "{graphviz}": check_graphviz,
    "{image}": check_image,
    "{literalinclude}": check_literalinclude,
    "{raw}": check_raw,
    "{toctree}": leave_to_sphinx,
    "{math}": leave_to_sphinx,
    "{autodoc2-object}": leave_to_sphinx,
    "{autodoc2-summary}": leave_to_sphinx,
    PROSE: check_prose,
    VALUE: check_value,
}
