"""Changes to prose: a number, a name in backticks, what a role says, and where a link leads.

MyST's parser says which lines are prose; within a paragraph it gives no columns, so roles, code and links are found
there by their marks.
"""

import re
from collections.abc import Iterator

from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

from reference_impl.doctesting.fences import MYST_EXTENSIONS, VALUE, fences
from reference_impl.doctesting.mutation.code import python_edits
from reference_impl.doctesting.mutation.edits import NUMBER, Edit, different, line_starts, misspelt, other_number

_MYST = create_md_parser(MdParserConfig(enable_extensions=set(MYST_EXTENSIONS)), RendererHTML)

# Roles of Sphinx itself whose content names a target; so does each role with a domain, as py:func.
_LINK_ROLES = frozenset({"any", "doc", "download", "func", "numref", "ref", "term"})
_SILENT_ROLES = frozenset({"math"})
_FENCE_MARK = re.compile(r"\s*(?:`{3,}|~{3,}|:{3,}|:[\w-]+:(?:\s|$))")
_LIST_MARK = re.compile(r"^[ >]*\d+[.)][ ]", re.MULTILINE)
_MARKUP = re.compile(
    r"""
    (?P<skipped> <!--.*?--> | <[a-z]+:[^>\s]*> | </?[a-zA-Z][^>]*> | (?<!\\)\$[^$]+\$ | \\. )
    | \{(?P<role>[\w:.+-]+)\}(?P<ticks>`+)(?P<content>.+?)(?<!`)(?P=ticks)(?!`)
    | (?P<marks>`+)(?P<code>.+?)(?<!`)(?P=marks)(?!`)
    | \]\((?P<target>[^)\s]+)[^)]*\)
    """,
    re.VERBOSE | re.DOTALL,
)
_TITLED = re.compile(r"(?P<shown>.*?)\s*<(?P<target>.+)>", re.DOTALL)


def prose_edits(text: str) -> Iterator[Edit]:
    """Change the numbers, names, roles and links of a page's prose."""
    starts, seen = line_starts(text), set[int]()
    for token in _MYST.parse(_without_fences(text)):
        if token.type == "inline" and token.map is not None and token.map[0] not in seen:
            # The cells of a table's row all give that row's line.
            seen.update(range(*token.map))
            start, end = starts[token.map[0]], starts[token.map[1]] - 1
            for edit in paragraph_edits(text[start:end]):
                yield Edit(edit.start + start, edit.before, edit.after, edit.kind)


def _without_fences(text: str) -> str:
    """Empty the lines of blocks and the marks and options of containers; what they contain stays where it is."""
    lines = text.split("\n")
    for fence in fences(text):
        if fence.kind != VALUE:
            lines[fence.line - 1 : fence.last_line] = [""] * (fence.last_line - fence.line + 1)
    return "\n".join("" if _FENCE_MARK.match(line) else line for line in lines)


def paragraph_edits(text: str) -> Iterator[Edit]:
    """Change what is in one paragraph, heading or row of a table."""
    plain = 0
    marker = _LIST_MARK.match(text)
    if marker is not None:
        plain = marker.end()
    for found in _MARKUP.finditer(text, plain):
        yield from _number_edits(text, plain, found.start())
        plain = found.end()
        if found["role"]:
            yield from _role_edits(found["role"], found["content"], found.start("content"))
        elif found["code"]:
            yield from _replaced(found["code"], different(found["code"]), found.start("code"), "name")
        elif found["target"]:
            yield from _target_edits(found["target"], found.start("target"))
    yield from _number_edits(text, plain, len(text))


def _number_edits(text: str, start: int, end: int) -> Iterator[Edit]:
    for number in NUMBER.finditer(text, start, end):
        yield Edit(number.start(), number[0], other_number(number[0]), "number")


def _role_edits(role: str, content: str, start: int) -> Iterator[Edit]:
    """Change what a role shows, and what it is bound to."""
    if role in _SILENT_ROLES:
        return
    is_link = ":" in role or role in _LINK_ROLES
    titled = _TITLED.fullmatch(content)
    if titled is None:
        yield from _replaced(
            content, (misspelt if is_link else different)(content), start, "link" if is_link else "name"
        )
        return
    shown, target = titled["shown"], titled["target"]
    kind = "number" if NUMBER.search(shown) else "name"
    # A link may be called anything; a bound value may not.
    if not is_link:
        yield from _replaced(shown, different(shown), start, kind)
    at = start + titled.start("target")
    if is_link:
        yield from _replaced(target, misspelt(target), at, "link")
        return
    for edit in python_edits(target):
        yield Edit(at + edit.start, edit.before, edit.after, "code")


def _target_edits(target: str, start: int) -> Iterator[Edit]:
    """Misspell the path and the anchor of a link."""
    path, mark, anchor = target.partition("#")
    yield from _replaced(path, misspelt(path), start, "link")
    yield from _replaced(anchor, misspelt(anchor), start + len(path) + len(mark), "link")


def _replaced(before: str, after: str | None, start: int, kind: str) -> Iterator[Edit]:
    if after is not None:
        yield Edit(start, before, after, kind)
