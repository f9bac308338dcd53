"""Hold a value in prose to the code of its page: a role `value` shows a text and names the expression that gives it.

The content of the role is the text and, in angle brackets, the expression: `5 <len(prompt)>` shows 5.
"""

import ast
import contextlib
import io
import re

from reference_impl.doctesting.case import Case

_VALUE = re.compile(r"(?P<shown>[^<>]*[^<>\s])\s*<(?P<expression>.+)>\s*", re.DOTALL)


def split_value(content: str) -> tuple[str, str]:
    """Part the content of a role into the shown text and the expression; `ValueError` when it is not of this form."""
    match = _VALUE.fullmatch(content)
    if match is None:
        raise ValueError(f"{content!r} is no value: write the shown text and then <expression>")
    return match["shown"].strip(), match["expression"].strip()


def check_value(case: Case) -> str | None:
    """Evaluate the expression in the page's namespace, after the code above it, and compare it with the shown text."""
    try:
        shown, expression = split_value(case.fence.source)
    except ValueError as error:
        return str(error)
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        return f"{expression} raises SyntaxError: {error.msg}"
    if not any(isinstance(node, ast.Name) for node in ast.walk(tree)):
        return f"{expression} is bound to nothing: name what the text comes from"
    space = {**case.checks.names, **case.namespace}
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(case.checks.root):
        try:
            got = str(eval(compile(expression, str(case.path), "eval", dont_inherit=True), space))
        except Exception as error:
            return f"{expression} raises {type(error).__name__}: {error}"
    if out.getvalue():
        return f"{expression} prints something; a value is an expression and nothing more"
    return None if got == shown else f"the page says {shown!r}, and {expression} is {got!r}"
