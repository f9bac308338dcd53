"""Find the docstrings of a Python file without importing it, each with its place in the file.

They are those of the module, its classes and functions, and the strings below assignments, which describe attributes.
"""

import ast
from collections.abc import Iterator


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of the file above each docstring, and its text without the indentation.

    Line n of the text is line `above + n` of the file. A docstring with escaped line ends has no such lines; its own are
    then off by as many.
    """
    found = [docstring for node in ast.walk(ast.parse(source)) for docstring in _of(node)]
    for line, text in sorted(found):
        yield line - 1, _dedented(text)


def _of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstring of a definition and those of the attributes in its body, each with its first line."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for before, statement in zip([None, *node.body], node.body, strict=False):
        if before is None or isinstance(before, (ast.Assign, ast.AnnAssign)):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text), lineno=line)):
                    yield line, text


def _dedented(text: str) -> str:
    """Remove the indentation that all lines but the first have; unlike `inspect.cleandoc`, keep every line."""
    first, *others = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.strip()), default=0)
    return "\n".join([first.lstrip(), *(line[margin:] for line in others)])
