"""YAML with the line of every key: text becomes a value and a map from dotted keys to places.

The nodes are built from the parser's events with a stack and not by recursion, so that depth and size are bounded while
the text is read: ten megabytes of brackets, or aliases that multiply, are refused after a few hundred events.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from reference_impl.config.errors import ConfigError
from reference_impl.config.findings import Finding, file_error
from reference_impl.config.yaml_dialect import MERGE, SCALARS, STRING, TAG, RecipeLoader

MOST_DEPTH = 64
"""Most levels of nesting, aliases followed. The deepest recipe of NeMo RL has ten."""
MOST_NODES = 20_000
"""Most keys and values of one file, aliases followed. The largest recipe of NeMo RL has under two thousand."""


@dataclass(frozen=True)
class Place:
    """Where a key and its value stand. Lines and columns count from 1; `start` and `end` are offsets into the text.

    `end` is exact for a value on one line; that of a block of lines may include blank lines after it. `flow` says that the
    key stands between braces.
    """

    line: int
    column: int
    start: int
    end: int
    flow: bool = False


@dataclass(frozen=True)
class Document:
    """What a text spells: its value, the place of each dotted key (`a.b`, `a.c[0]`), and keys that are written twice."""

    value: Any
    places: dict[str, Place]
    problems: tuple[Finding, ...] = ()

    @property
    def lines(self) -> dict[str, int]:
        """The line of each dotted key."""
        return {key: place.line for key, place in self.places.items()}


@dataclass
class _Node:
    """A value under construction; `items` are the entries of a mapping by key, or those of a list by number."""

    value: Any
    place: Place
    items: dict[Any, "_Node"] = field(default_factory=dict)
    size: int = 1
    depth: int = 1
    anchor: str | None = None
    key: "_Node | None" = None
    merged: list["_Node"] = field(default_factory=list)
    flow: bool = False

    def holds(self, name: Any, node: "_Node", place: Place) -> None:
        """Take in an entry at the end of which `self.value` is complete again."""
        self.items[name] = _Node(node.value, place, node.items)
        if isinstance(self.value, list):
            self.value.append(node.value)
        else:
            self.value[name] = node.value


class _RefusedError(Exception):
    """The text is no recipe; `args` are the message and the mark at which that shows."""


def parse_yaml(text: str, source: str) -> Document:
    """What `text` spells; raises {class}`ConfigError` with `source`, line and column (from 1) if it spells nothing."""
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        line, column = position(text, found.start())
        raise ConfigError.of([file_error(source, "a control character", "yaml", line=line, column=column)])
    builder = _Builder(source)
    loader = RecipeLoader(text)
    try:
        root = builder.build(loader)
    except (yaml.MarkedYAMLError, _RefusedError) as error:
        message, mark = _fault(error, text)
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError.of([file_error(source, message, "yaml", line=line, column=column)]) from error
    finally:
        loader.dispose()
    return Document(root.value, dict(_places(root, "")), tuple(builder.problems))


def position(text: str, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of an offset into the text."""
    before = text[:offset]
    return before.count("\n") + 1, offset - before.rfind("\n")


def _fault(error: Exception, text: str) -> tuple[str, Any]:
    """What is wrong, and the mark at which it shows."""
    if isinstance(error, _RefusedError):
        return error.args
    assert isinstance(error, yaml.MarkedYAMLError)
    mark = error.problem_mark or error.context_mark
    if mark and "\t" in _margin(text, mark.line):
        return "not valid YAML: a tab in the margin; indent with spaces", mark
    return f"not valid YAML: {error.problem or error.context}", mark


def _margin(text: str, line: int) -> str:
    """The white space before the first character of a line, counted from 0."""
    lines = text.split("\n", line + 1)
    return lines[line][: -len(lines[line].lstrip()) or None] if line < len(lines) else ""


def _places(node: _Node, prefix: str) -> Iterator[tuple[str, Place]]:
    is_list = isinstance(node.value, list)
    for name, item in node.items.items():
        key = f"{prefix}[{name}]" if is_list else f"{prefix}.{name}" if prefix else str(name)
        yield key, item.place
        yield from _places(item, key)


class _Builder:
    """Puts one document together, event by event."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[Finding] = []
        self.stack: list[_Node] = []
        self.anchors: dict[str, _Node] = {}
        self.size = 0

    def build(self, loader: Any) -> _Node:
        """The root of the only document; an empty text is `None`."""
        root = None
        while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent) and root is not None:
                raise _RefusedError("not valid YAML: a second document begins here", event.start_mark)
            node = self._take(event, loader)
            if node is not None and not self._attach(node, event):
                root = node
        return root or _Node(None, Place(1, 1, 0, 0))

    def _take(self, event: Any, loader: Any) -> _Node | None:
        """The value that this event completes, if it completes one."""
        match event:
            case yaml.ScalarEvent():
                return self._opened(_Node(*self._scalar(event, loader)), event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                is_map = isinstance(event, yaml.MappingStartEvent)
                if event.tag not in (None, "!", TAG + ("map" if is_map else "seq")):
                    raise _RefusedError(f"not valid YAML: the tag {event.tag!r} has no meaning here", event.start_mark)
                if len(self.stack) >= MOST_DEPTH:
                    raise _RefusedError("nested too deeply to be a recipe", event.start_mark)
                node = _Node({} if is_map else [], _place(event), flow=bool(event.flow_style))
                self.stack.append(self._opened(node, event))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                node = self.stack.pop()
                node.place = Place(node.place.line, node.place.column, node.place.start, _place(event).end)
                node.anchor = None
                _merge_below(node)
                return node
            case yaml.AliasEvent():
                return self._alias(event)
        return None

    def _opened(self, node: _Node, event: Any) -> _Node:
        self._count(1, event)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            node.anchor = event.anchor if isinstance(node.value, dict | list) else None
        return node

    def _alias(self, event: Any) -> _Node:
        """What the anchor stands for; loops, and aliases that multiply, end here."""
        node = self.anchors.get(event.anchor)
        if node is None:
            raise _RefusedError(f"not valid YAML: no anchor &{event.anchor} before this alias", event.start_mark)
        if node.anchor is not None:
            raise _RefusedError(f"the anchor &{event.anchor} contains itself", event.start_mark)
        if len(self.stack) + node.depth > MOST_DEPTH:
            raise _RefusedError("nested too deeply to be a recipe, aliases followed", event.start_mark)
        self._count(node.size, event)
        return _Node(node.value, _place(event), node.items, node.size, node.depth)

    def _count(self, more: int, event: Any) -> None:
        self.size += more
        if self.size > MOST_NODES:
            raise _RefusedError(
                f"more than {MOST_NODES} values, aliases followed; too large for a recipe", event.start_mark
            )

    def _scalar(self, event: Any, loader: Any) -> tuple[Any, Place]:
        tag = event.tag
        if tag in (None, "!"):
            tag = STRING if tag == "!" else loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in (STRING, MERGE):
            return (_MERGE_KEY if tag == MERGE else event.value), _place(event)
        if tag not in SCALARS:
            raise _RefusedError(f"not valid YAML: the tag {tag!r} has no meaning here", event.start_mark)
        try:
            node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            return loader.yaml_constructors[tag](loader, node), _place(event)
        except (ValueError, KeyError, IndexError) as error:
            raise _RefusedError(f"not valid YAML: {event.value[:40]!r} is not a value", event.start_mark) from error

    def _attach(self, node: _Node, event: Any) -> bool:
        """Give a finished value to the list or mapping around it; `False` for the root."""
        if not self.stack:
            return False
        parent = self.stack[-1]
        parent.size += node.size
        parent.depth = max(parent.depth, node.depth + 1)
        if isinstance(parent.value, list):
            parent.holds(len(parent.value), node, node.place)
        elif parent.key is None:
            if isinstance(node.value, dict | list):
                raise _RefusedError("a key has to be plain text, not a list or a mapping", event.start_mark)
            parent.key = node
        else:
            key, parent.key = parent.key, None
            self._enter(parent, key, node)
        return True

    def _enter(self, parent: _Node, key: _Node, node: _Node) -> None:
        at = Place(key.place.line, key.place.column, key.place.start, node.place.end, parent.flow)
        if key.value is _MERGE_KEY:
            _check_merge(node, key)
            parent.merged.append(node)
        elif key.value in parent.items:
            message = f"key {key.value!r} twice; the first is on line {parent.items[key.value].place.line}"
            self.problems.append(file_error(self.source, message, "duplicate-key", line=at.line, column=at.column))
        else:
            parent.holds(key.value, node, at)


_MERGE_KEY = object()


def _check_merge(node: _Node, key: _Node) -> None:
    values = node.value if isinstance(node.value, list) else [node.value]
    if not all(isinstance(value, dict) for value in values):
        raise _RefusedError("not valid YAML: << takes a mapping or a list of mappings", _Mark(key.place))


class _Mark:
    def __init__(self, place: Place) -> None:
        self.line, self.column = place.line - 1, place.column - 1


def _merge_below(node: _Node) -> None:
    """What `<<` brings in: keys that the mapping does not write itself, and the first of several wins."""
    for merged in node.merged:
        sources = list(merged.items.values()) if isinstance(merged.value, list) else [merged]
        for source in sources:
            for name, item in source.items.items():
                if name not in node.items:
                    node.holds(name, item, item.place)


def _place(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1, event.start_mark.index, event.end_mark.index)
