"""Compare what a program printed with what a page says it prints, to the letter.

Only two things on a page may stand for something else: `<number>` for one number and `<path>` for one run of characters
that are no space. There is no ellipsis, because an ellipsis also swallows the line that should not have been there.
"""

import re
from difflib import unified_diff

_TOKENS = {
    "<number>": r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?",
    "<path>": r"\S+",
}
_TOKEN = re.compile("|".join(map(re.escape, _TOKENS)))


def difference(printed: str, written: str) -> str | None:
    """Return how `printed` differs from what the page has `written`, or None when they agree."""
    got, want = _trimmed(printed), _trimmed(written)
    if got == want or re.fullmatch(_pattern(want), got):
        return None
    lines = unified_diff(want.split("\n"), got.split("\n"), "the page", "the output", lineterm="", n=2)
    return "\n".join(lines)


def _trimmed(text: str) -> str:
    """Drop what no reader sees: whitespace at the end of a line and empty lines at the end of the text."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")


def _pattern(written: str) -> str:
    """Turn a page's text into a regular expression; a token also matches itself, as a usage line may print `<path>`."""
    parts, end = list[str](), 0
    for token in _TOKEN.finditer(written):
        parts.append(re.escape(written[end : token.start()]))
        parts.append(f"(?:{re.escape(token[0])}|{_TOKENS[token[0]]})")
        end = token.end()
    return "".join(parts) + re.escape(written[end:])
