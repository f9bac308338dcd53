"""Read a MyST page into its fences: everything on it that a reader may take for code, a listing, a diagram or a result.

The page is read by MyST's own parser, so that what is found is what Sphinx shows; a regular expression would miss a
fence in a list and find one in a comment. Nothing is dropped: indented code, fences without a language and fences
hidden in HTML comments come out too, under kinds that no evaluator claims, because what goes unnoticed here rots.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.myst_role.index import myst_role
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

# One list for the site and for the lexer: were they to differ, a page would be read in two ways.
MYST_EXTENSIONS = frozenset({"attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"})

# Directives that show code: their argument is the language.
CODE_DIRECTIVES = frozenset({"code", "code-block", "sourcecode"})

# Directives whose body is MyST. The text after the name opens the body of the first sort, and titles or classes the second.
PLAIN_CONTAINERS = frozenset(
    {"attention", "caution", "danger", "error", "hint", "important", "note", "seealso", "tab-set", "tip", "warning"}
)
TITLED_CONTAINERS = frozenset({"admonition", "container", "dropdown", "tab-item"})

INDENTED = "<indented code>"
UNLABELLED = "<no language>"
HIDDEN = "<hidden in a comment>"
RAW_HTML = "<raw HTML>"
PROSE = "{prose}"
VALUE = "{value}"

_DIRECTIVE = re.compile(r"\{(?P<name>[\w:.+-]+)\} ?(?P<argument>.*)", re.DOTALL)
_OPTION = re.compile(r"\s*:(?!::)(?P<name>[^:]+):(?P<value>.*)")
_FENCE_MARK = re.compile(r"^[\s>%*+-]*(?:`{3,}|~{3,}|:{3,})", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HTML_LISTING = re.compile(r"<(?:pre|code|samp|kbd|textarea|xmp)\b", re.IGNORECASE)


def _parser() -> MarkdownIt:
    """Make MyST's parser, which also notes on which line of its paragraph a role stands."""

    def placed(state: StateInline, silent: bool) -> bool:
        start = state.pos
        found = myst_role(state, silent)
        if found and not silent:
            state.tokens[-1].meta["line"] = state.src.count("\n", 0, start)
        return found

    parser = create_md_parser(MdParserConfig(enable_extensions=set(MYST_EXTENSIONS)), RendererHTML)
    parser.inline.ruler.at("myst_role", placed)
    return parser


_MYST = _parser()


@dataclass(frozen=True, kw_only=True)
class Fence:
    """One block of a page, as it is written, or one value in its prose.

    `kind` is the language, or a directive's or role's name in braces (`{graphviz}`, `{value}`), or for what has neither a
    description in angle brackets (`<indented code>`). `line` and `last_line` count from 1 and hold the fence marks; `source_line` is where `source`,
    without its options, begins.
    """

    kind: str
    source: str
    line: int
    last_line: int
    source_line: int
    argument: str = ""
    options: dict[str, str] = field(default_factory=dict)


def fences(text: str, *, above: int = 0) -> Iterator[Fence]:
    """Yield the fences of `text` from top to bottom, entering the directives whose body is MyST.

    `above` lines of the file come before `text`, and are added to every line number.
    """
    for token in _MYST.parse(text):
        if token.type in {"fence", "colon_fence"}:
            yield from _fence(token, above)
        elif token.type == "code_block":
            yield _block(INDENTED, token, above)
        elif token.type in {"html_block", "myst_line_comment"}:
            yield from _unshown(token, above)
        elif token.type == "inline":
            yield from _inline(token, above)


def front_matter(text: str) -> dict[str, Any]:
    """Return the data between the lines `---` that a page may begin with; `ValueError` when it is no mapping."""
    first = next(iter(_MYST.parse(text)), None) if text.startswith("---") else None
    if first is None or first.type != "front_matter":
        return {}
    try:
        data = yaml.safe_load(first.content)
    except yaml.YAMLError as error:
        raise ValueError(f"bad front matter: {error}") from None
    if not isinstance(data, dict):
        raise ValueError("bad front matter: it is no mapping")
    return data


def _fence(token: Token, above: int) -> Iterator[Fence]:
    """Yield the fence that is `token`, or the fences inside it when it is a container."""
    directive = _DIRECTIVE.fullmatch(token.info)
    if directive is None:
        # Three colons and a word make a box and no listing, whatever the word.
        colons = ":::" if token.type == "colon_fence" else ""
        yield _block(f"{colons}{token.info}" or UNLABELLED, token, above)
        return
    name, argument = directive["name"], directive["argument"]
    options, body, skipped = split_options(token.content)
    if name in PLAIN_CONTAINERS | TITLED_CONTAINERS:
        below = _lines(token)[0] + above + 1 + skipped
        if name in PLAIN_CONTAINERS and argument.strip():
            # The argument is the body's first line, one line above where the rest of it is.
            yield from fences(f"{argument}\n{body}", above=below - 1)
            return
        for title in _MYST.parseInline(argument):
            yield from _values(title.children or (), _lines(token)[0] + above + 1)
        yield from fences(body, above=below)
        return
    kind = (argument or UNLABELLED) if name in CODE_DIRECTIVES else f"{{{name}}}"
    yield _block(kind, token, above, source=body, skipped=skipped, argument=argument.strip(), options=options)


def _unshown(token: Token, above: int) -> Iterator[Fence]:
    """Yield what would escape every check: a fence in a comment, that nobody sees, and a listing in raw HTML."""
    is_comment = token.type == "myst_line_comment"
    html = "" if is_comment else _COMMENT.sub("", token.content)
    if _FENCE_MARK.search(html) or _HTML_LISTING.search(html):
        yield _block(RAW_HTML, token, above)
    elif _FENCE_MARK.search(token.content):
        yield _block(HIDDEN, token, above)


def _inline(token: Token, above: int) -> Iterator[Fence]:
    """Yield what is to be checked within a paragraph, a heading or a cell of a table: listings in HTML, and values."""
    children = token.children or ()
    html = " ".join(child.content for child in children if child.type == "html_inline")
    if _HTML_LISTING.search(html):
        yield _block(RAW_HTML, token, above, source=html)
    yield from _values(children, _lines(token)[0] + above + 1)


def _values(children: Sequence[Token], line: int) -> Iterator[Fence]:
    """Yield the `{value}` roles of a paragraph that begins on `line`."""
    for child in children:
        if child.type == "myst_role" and child.meta["name"] == "value":
            at = line + child.meta["line"]
            yield Fence(kind=VALUE, source=child.content, line=at, last_line=at, source_line=at)
        yield from _values(child.children or (), line)


def _block(
    kind: str,
    token: Token,
    above: int,
    *,
    source: str | None = None,
    skipped: int = 0,
    argument: str = "",
    options: dict[str, str] | None = None,
) -> Fence:
    first, end = _lines(token)
    has_marks = token.type in {"fence", "colon_fence"}
    return Fence(
        kind=kind,
        source=token.content if source is None else source,
        line=above + first + 1,
        last_line=above + end,
        source_line=above + first + 1 + has_marks + skipped,
        argument=argument,
        options=options or {},
    )


def _lines(token: Token) -> tuple[int, int]:
    """Return the first line of a block and the line after its last, counted from 0."""
    assert token.map is not None, f"MyST gave no lines for {token.type}"
    return token.map[0], token.map[1]


def split_options(content: str) -> tuple[dict[str, str], str, int]:
    """Part a directive's content into its options, its body, and the number of lines that come before the body.

    Both of MyST's forms are known: lines `:name: value`, and a block between two lines `---`. As in MyST, one blank
    line before the body is no part of it.
    """
    lines = content.split("\n")
    count, written = 0, list[str]()
    if lines[0].startswith("---"):
        end = next((n for n, line in enumerate(lines[1:], 1) if line.startswith("---")), len(lines) - 1)
        written, count = [f":{line}" for line in dedent("\n".join(lines[1:end])).split("\n")], end + 1
    else:
        while count < len(lines) and _OPTION.fullmatch(lines[count]):
            written.append(lines[count])
            count += 1
    found = [_OPTION.fullmatch(line) for line in written]
    options = {match["name"].strip(): match["value"].strip() for match in found if match}
    if count < len(lines) - 1 and not lines[count].strip():
        count += 1
    return options, "\n".join(lines[count:]), count
