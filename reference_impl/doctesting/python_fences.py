"""Run the Python of a page: plain code with its output in the `text` block below, and sessions with `>>>`."""

import ast
import contextlib
import io
import re
import sys
import traceback
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reference_impl.doctesting.case import Case
from reference_impl.doctesting.matching import difference

_TRACEBACK = "Traceback (most recent call last):"
_DIRECTIVE = re.compile(r"#\s*doctest\s*:")


def run_python(case: Case) -> str | None:
    """Run a fence in the page's namespace; what it prints must be the `text` fence that follows, and nothing else."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        problem = _execute(case.fence.source, case.fence.source_line, "exec", case)
    if problem:
        return problem
    printed = out.getvalue()
    if case.after is None or case.after.kind != "text":
        return f"printed, but no text fence follows to show it:\n{printed}" if printed else None
    if not printed:
        return f"printed nothing, but the text fence on line {case.after.line} says that it does"
    problem = difference(printed, case.after.source)
    if problem is None:
        case.proved.add(case.after.line)
    return problem


def check_text(case: Case) -> str | None:
    """Accept a `text` fence only as the output of the `python` fence above, which has compared it."""
    if case.before is None or case.before.kind != "python":
        return "a text fence shows what the python fence right above it prints, and there is none"
    if case.fence.line not in case.proved:
        return f"not printed: the python fence on line {case.before.line} failed, or was not run"
    return None


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a session: its code, the line of the page that it begins on, and the output shown for it."""

    code: str
    line: int
    output: str


def run_session(case: Case) -> str | None:
    """Run each statement of a `pycon` fence in the page's namespace, and compare what it prints.

    An exception that the page shows is compared by the last line of its traceback. Directives of doctest are refused:
    they loosen the comparison or skip the statement.
    """
    if not case.fence.source.startswith(">>>"):
        return "a session begins with a statement, on a line that begins with '>>> '"
    for statement in statements(case.fence.source, case.fence.source_line):
        problem = _run_statement(statement, case)
        if problem is not None:
            return f"line {statement.line}: {problem}"
    return None


def statements(source: str, line: int) -> Iterator[Statement]:
    """Yield the statements of a session whose first line is line `line` of its page."""
    lines = source.rstrip("\n").split("\n")
    starts = [n for n, text in enumerate(lines) if text.startswith(">>>")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        output = start + 1
        while output < end and re.match(r"\.\.\.(?: |$)", lines[output]):
            output += 1
        code = "\n".join(text[4:] for text in lines[start:output])
        yield Statement(code=code, line=line + start, output="\n".join(lines[output:end]))


def _run_statement(statement: Statement, case: Case) -> str | None:
    """Run one statement and say how it strays from the page."""
    if _DIRECTIVE.search(statement.code):
        return "doctest directives are not known: each statement is run and compared"
    shown, shows_error, trace = statement.output.partition(_TRACEBACK)
    hook, sys.displayhook = sys.displayhook, _display
    raised = None
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            problem = _execute(statement.code + "\n", statement.line, "single", case)
    except Exception as error:
        if not shows_error:
            raise
        raised = "".join(traceback.format_exception_only(error)).rstrip().split("\n")[-1]
        problem = difference(raised, trace.rstrip().split("\n")[-1])
    finally:
        sys.displayhook = hook
    if not problem and shows_error and raised is None:
        problem = "the page shows an exception, and there is none"
    return problem or difference(out.getvalue(), shown)


def _display(value: object) -> None:
    """Print the value of an expression as Python's own prompt does, without keeping it in `_`."""
    if value is not None:
        print(repr(value))


def _execute(source: str, line: int, mode: Literal["exec", "single"], case: Case) -> str | None:
    """Run the code on line `line` of a page from the project's root; return what stopped it other than an error."""
    # Empty lines above the code give tracebacks, and inspect.getsource, the line numbers of the page.
    padded = "\n" * (line - 1) + source
    code = compile(padded, str(case.path), mode, dont_inherit=True)
    if problem := _elided(ast.parse(padded)):
        return problem
    case.namespace.setdefault("__name__", "__page__")
    with contextlib.chdir(case.checks.root):
        try:
            exec(code, case.namespace)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Test runners skip on these and call it a success. A page has no way to be skipped.
            if isinstance(error, unittest.SkipTest) or not isinstance(error, Exception):
                return f"stopped by {type(error).__name__}: {error}"
            raise
    return None


def _elided(tree: ast.AST) -> str | None:
    """Find a call `f(...)`, which stands for one that the page does not show."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    for value in (value for call in calls for value in [*call.args, *(keyword.value for keyword in call.keywords)]):
        if isinstance(value, ast.Constant) and value.value is ...:
            return f"line {value.lineno}: '...' as an argument; write the arguments out"
    return None
