"""Compare what a program printed with what a page says it prints, to the letter.

Only two things on a page may stand for something else: `<LOW..HIGH>`, such as `<0.2..0.9>`, for one number that is neither
below the first bound nor above the second, and `<path>` for one run of characters that are no space. There is no
ellipsis, because an ellipsis also swallows the line that should not have been there.
"""

import re
from collections.abc import Sequence
from difflib import unified_diff

_NUMBER = r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
_TOKEN = re.compile(rf"<(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})>|<path>")
# All of a number, and not the end of one and the beginning of another.
_WHOLE_NUMBER = rf"(?<!\d)(?<!\d\.){_NUMBER}(?!\.?\d|[eE][-+]?\d)"


def difference(printed: str, written: str) -> str | None:
    """Return how `printed` differs from what the page has `written`, or None when they agree."""
    got, want = _trimmed(printed), _trimmed(written)
    tokens = list(_TOKEN.finditer(want))
    match = re.fullmatch(_pattern(want, tokens), got)
    if match:
        return next(filter(None, map(_out_of_bounds, tokens, match.groups())), None)
    lines = unified_diff(want.split("\n"), got.split("\n"), "the page", "the output", lineterm="", n=2)
    return "\n".join(lines)


def _trimmed(text: str) -> str:
    """Drop what no reader sees: whitespace at the end of a line and empty lines at the end of the text."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")


def _pattern(written: str, tokens: Sequence[re.Match[str]]) -> str:
    """Turn a page's text into a regular expression with a group a token.

    A token also matches itself, as a usage line may print `<path>`.
    """
    parts, end = list[str](), 0
    for token in tokens:
        other = r"\S+" if token["low"] is None else _WHOLE_NUMBER
        parts.append(f"{re.escape(written[end : token.start()])}({re.escape(token[0])}|{other})")
        end = token.end()
    return "".join(parts) + re.escape(written[end:])


def _out_of_bounds(token: re.Match[str], got: str) -> str | None:
    """Say that a number is not where the page says that it is."""
    if token["low"] is None or got == token[0]:
        return None
    low, high = float(token["low"]), float(token["high"])
    if low >= high:
        return f"{token[0]}: the first bound is to be below the second"
    return None if low <= float(got) <= high else f"{got} is not within {token[0]}"
