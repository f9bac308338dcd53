"""Changes to code: a token of Python, or a word of a command."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from reference_impl.doctesting.mutation.edits import Edit, different, line_starts, misspelt, other_number

_OPERATORS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "+": "-",
    "-": "+",
    "+=": "-=",
    "-=": "+=",
}
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d*)?")
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_STRINGS = {tokenize.STRING, tokenize.FSTRING_MIDDLE}
_LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.COMMENT}


def python_edits(source: str) -> Iterator[Edit]:
    """Change tokens of Python, and drop keyword arguments; code that cannot be read is left alone."""
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return
    starts = line_starts(source)
    described = _docstrings(tree)
    for token in tokens:
        start = starts[token.start[0] - 1] + token.start[1]
        # A literal brace in an f-string is written twice, and its token's place is then off.
        if token.type in _LAYOUT or token.start in described or not source.startswith(token.string, start):
            continue
        edit = _token_edit(token, start)
        if edit is not None:
            yield edit
    yield from _dropped_keywords(tree, source)


def _token_edit(token: tokenize.TokenInfo, start: int) -> Edit | None:
    written = token.string
    if token.type in _STRINGS:
        # Past the prefix: the f and r of an rf"..." are no letters of the text.
        letters = _LETTERS.search(written, written.find(written[-1]) if token.type == tokenize.STRING else 0)
        wrong = misspelt(letters[0]) if letters else None
        return Edit(start + letters.start(), letters[0], wrong, "code") if letters and wrong else None
    if written in {"True", "False"}:
        return Edit(start, written, different(written) or "", "code")
    if token.type == tokenize.NUMBER:
        number = _NUMBER.match(written)
        if number is None or written[:2].lower() in {"0x", "0b", "0o"}:
            return None
        return Edit(start, number[0], other_number(number[0].rstrip(".").replace("_", "")), "code")
    if token.type == tokenize.OP and written in _OPERATORS:
        return Edit(start, written, _OPERATORS[written], "code")
    return None


def _docstrings(tree: ast.Module) -> set[tuple[int, int]]:
    """Return where the strings stand that are a statement of their own: they are remarks."""
    return {
        (node.lineno, node.col_offset)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def _dropped_keywords(tree: ast.Module, source: str) -> Iterator[Edit]:
    """Drop each keyword argument of each call, with the comma that sets it off."""
    lines, starts = source.split("\n"), line_starts(source)

    def offset(line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            assert keyword.end_lineno is not None
            assert keyword.end_col_offset is not None
            start = offset(keyword.lineno, keyword.col_offset)
            end = offset(keyword.end_lineno, keyword.end_col_offset)
            before = re.search(r",\s*\Z", source[:start])
            after = re.match(r"\s*,[ \t]*", source[end:])
            if before is not None:
                start = before.start()
            elif after is not None:
                end += after.end()
            yield Edit(start, source[start:end], "", "code")


def command_edits(line: str) -> Iterator[Edit]:
    """Change each word of a command but the program's name, and drop each option."""
    words = list(re.finditer(r"[^\s\\]+", line))
    for word in words[1:]:
        changed = different(word[0])
        if changed is not None:
            yield Edit(word.start(), word[0], changed, "code")
        if word[0].startswith("-"):
            yield Edit(word.start() - 1, f" {word[0]}", "", "code")
