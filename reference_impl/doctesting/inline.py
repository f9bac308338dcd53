"""Keep prose closed: inline code is a known word or a role, and a number is bound to what it comes from.

Blocks of code are run; what a paragraph says beside them rots unseen. `prose_problems` walks a page's text as MyST parses it
and asks the project about each piece of plain inline code. A number fails wherever it stands in plain text, because a
role (`{value}`, or one of the project's own) can show it and be checked.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from reference_impl.doctesting.fences import MYST_EXTENSIONS, PLAIN_CONTAINERS, TITLED_CONTAINERS, split_options

_MYST = create_md_parser(MdParserConfig(enable_extensions=set(MYST_EXTENSIONS)), RendererHTML)
_DIRECTIVE = re.compile(r"\{([\w:.+-]+)\} ?(.*)", re.DOTALL)

# Digits that belong to a name are no number: float32, H200, UTF-8, 1-based. A unit that sticks to its number is one.
_UNITS = r"(?:ms|min|px|[KMGT]i?B|[shxk])(?!\w)"
_NUMBER = re.compile(
    rf"(?<![\w.])(?<![A-Za-z]-)[-+−]?\d++(?:[.,_]\d++)*+(?:[eE][-+]?\d++)?+(?:%|{_UNITS}|(?!\w|-based\b))",
)


def prose_problems(text: str, accepts: Callable[[str], str | None]) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with the prose of the page `text`: the line, from 1, and a message.

    `accepts` is given each plain inline code and returns why it may not stand there, or `None`. Fences, roles, formulas,
    raw HTML, comments and the targets of links are no prose; the text of a link is. Directives whose body is MyST are
    entered, and no others.
    """
    for line, kind, content in prose(text):
        if kind == "code":
            reason = accepts(content)
            if reason is not None:
                yield line, f"`{content}`: {reason}"
            continue
        for number in _NUMBER.finditer(content):
            yield line, f"{number[0]}: write {{value}}`{number[0]} <expression>` or a role"


def prose(text: str, above: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yield the pieces of a page's prose from top to bottom: the line, `code` or `text`, and what is written there.

    `above` is how many lines of the page come before `text`.
    """
    for token in _MYST.parse(text):
        first = above + (token.map[0] if token.map else 0)
        if token.type == "inline":
            yield from _pieces(token, first + 1)
        elif token.type in {"fence", "colon_fence"}:
            yield from _inside(token, first + 1)


def _inside(token: Token, line: int) -> Iterator[tuple[int, str, str]]:
    """Yield the prose of a directive whose body is MyST."""
    directive = _DIRECTIVE.fullmatch(token.info)
    if directive is None or directive[1] not in PLAIN_CONTAINERS | TITLED_CONTAINERS:
        return
    # A title, or the body's first line: prose in either case.
    for title in _MYST.parseInline(directive[2]) if directive[1] != "container" else ():
        yield from _pieces(title, line)
    _, body, skipped = split_options(token.content)
    yield from prose(body, above=line + skipped)


def _pieces(token: Token, line: int) -> Iterator[tuple[int, str, str]]:
    """Yield the text and code of a paragraph, a heading or a cell, which begins on `line`."""
    at = 0
    for child in _flat(token.children or ()):
        if child.type in {"softbreak", "hardbreak"}:
            at = max(token.content.find("\n", at) + 1, at)
            continue
        # Where it is written: the parser has turned line breaks within code into spaces.
        written = re.compile(r"\s+".join(map(re.escape, child.content.split()))).search(token.content, at)
        start, at = written.span() if written else (at, at)
        if child.type in _KINDS:
            yield line + token.content.count("\n", 0, start), _KINDS[child.type], child.content


_KINDS = {"text": "text", "code_inline": "code"}


def _flat(children: Sequence[Token]) -> Iterator[Token]:
    """Yield inline tokens, without the text of a link that is its own address."""
    is_address = False
    for child in children:
        if child.type in {"link_open", "link_close"}:
            is_address = child.type == "link_open" and child.info == "auto"
        elif child.type == "image":
            yield from _flat(child.children or ())
        elif not is_address:
            yield child
