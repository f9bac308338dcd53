"""Read what another project's source says (signatures, fields, defaults, enums) without importing any of it.

`installed("megatron-core")` opens an installed distribution and `Source(folder)` a checkout; each fact is then a text, taken
from the syntax tree of the file that defines the object. A page that states such a fact can so be held to the version that
is installed, in milliseconds and without the project's own dependencies.
"""

import ast
import difflib
import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
type _Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Module


class NotFoundError(LookupError):
    """An object, a module or a distribution that is not there; the message names what was sought and what is near it."""


@dataclass(frozen=True)
class Field:
    """A field of a class as its source spells it: the annotation, and the default or `None` where it is required."""

    annotation: str
    default: str | None

    def __str__(self) -> str:
        """`int = 20`, or `int` alone."""
        return self.annotation if self.default is None else f"{self.annotation} = {self.default}"


@dataclass(frozen=True)
class Source:
    """Python source below `folder`, in which the module `a.b` is `a/b.py` or `a/b/__init__.py`.

    Every method takes a dotted name, such as `package.module.Class.method`, and raises {class}`NotFoundError` for one that
    is not there or is of another kind. Inherited members belong to the class that defines them.
    """

    folder: Path

    def signature(self, name: str) -> str:
        """The parameters and the result of a function or method: `(request_id: int) -> None`; without `self` or `cls`."""
        node = self._find(name)
        if not isinstance(node, _FUNCTIONS):
            raise NotFoundError(f"{name} is no function")
        bound = isinstance(self._find(name.rpartition(".")[0]), ast.ClassDef) and not _is(node, "staticmethod")
        positional = [*node.args.posonlyargs, *node.args.args]
        arguments = _without(node.args, positional[0]) if bound and positional else node.args
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"({ast.unparse(arguments)}){result}"

    def fields(self, name: str) -> dict[str, Field]:
        """The annotated fields of a class, in their order."""
        return {
            node.target.id: Field(ast.unparse(node.annotation), _default(node.value))
            for node in _members(self._class(name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        }

    def field(self, name: str) -> Field:
        """One field: `package.module.Class.field`."""
        owner, _, last = name.rpartition(".")
        return _pick(self.fields(owner), last, owner)

    def members(self, name: str) -> dict[str, str]:
        """The members of an enum and their values as source text."""
        return {
            target.id: ast.unparse(node.value)
            for node in _members(self._class(name))
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def value(self, name: str) -> str:
        """The right-hand side of an assignment, as source text."""
        node = self._find(name)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            raise NotFoundError(f"{name} has no value")
        return ast.unparse(node.value)

    def abstract_methods(self, name: str) -> tuple[str, ...]:
        """The names of the methods that a class leaves to others, in their order."""
        found = (node for node in _members(self._class(name)) if isinstance(node, _FUNCTIONS))
        return tuple(node.name for node in found if _is(node, "abstractmethod"))

    def methods(self, name: str) -> tuple[str, ...]:
        """The names of all methods that a class defines itself, in their order."""
        return tuple(node.name for node in _members(self._class(name)) if isinstance(node, _FUNCTIONS))

    def _class(self, name: str) -> ast.ClassDef:
        node = self._find(name)
        if not isinstance(node, ast.ClassDef):
            raise NotFoundError(f"{name} is no class")
        return node

    def _find(self, name: str) -> _Definition:
        """The definition of an object, sought in the longest part of the name that is a module."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            file = self._module(parts[:length])
            if file is not None:
                node: _Definition = _parsed(file.read_text("utf-8"))
                seen = ".".join(parts[:length])
                for part in parts[length:]:
                    node, seen = _pick(_named(node), part, seen), f"{seen}.{part}"
                return node
        raise NotFoundError(f"{name}: no module {parts[0]} in {self.folder}")

    def _module(self, parts: list[str]) -> Path | None:
        stem = self.folder.joinpath(*parts)
        return next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)


def installed(distribution: str) -> Source:
    """The source of an installed distribution; raises {class}`NotFoundError` if there is none of this name."""
    try:
        return Source(Path(str(importlib.metadata.distribution(distribution).locate_file(""))))
    except importlib.metadata.PackageNotFoundError:
        names = {found.name for found in importlib.metadata.distributions() if found.name}
        raise NotFoundError(f"no distribution {distribution!r} is installed{_near(distribution, names)}") from None


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    """By the text and not by the file: two writes may bear one time stamp."""
    return ast.parse(text)


def _members(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a body, those under `if` and `try` included."""
    for statement in getattr(node, "body", []):
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _members(statement)
            yield from _members(ast.Module([*statement.orelse, *getattr(statement, "finalbody", [])], []))
            for handler in getattr(statement, "handlers", []):
                yield from _members(handler)


def _named(node: ast.AST) -> dict[str, _Definition]:
    """What a module or class defines, by name; of two definitions the first one counts, as overloads and `if` have it."""
    found: dict[str, _Definition] = {}
    for member in _members(node):
        if isinstance(member, (*_FUNCTIONS, ast.ClassDef)):
            found.setdefault(member.name, member)
        elif isinstance(member, ast.Assign | ast.AnnAssign):
            targets = member.targets if isinstance(member, ast.Assign) else [member.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, member)
    return found


def _pick[Found](found: Mapping[str, Found], name: str, owner: str) -> Found:
    if name not in found:
        raise NotFoundError(f"{owner} has no {name}{_near(name, found)}")
    return found[name]


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _default(node: ast.expr | None) -> str | None:
    """The text of a default; of `field(default=...)` what counts, without the rest."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
        said = {word.arg: word.value for word in node.keywords}
        if "default_factory" in said:
            return f"{ast.unparse(said['default_factory'])}()"
        return ast.unparse(said["default"]) if "default" in said else None
    return None if node is None else ast.unparse(node)


def _is(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    """Whether a function carries a decorator, with or without the module that it comes from."""
    return any(ast.unparse(mark).rpartition(".")[2] == decorator for mark in node.decorator_list)


def _without(arguments: ast.arguments, first: ast.arg) -> ast.arguments:
    """The arguments but for the one that the call fills in by itself."""
    return ast.arguments(
        posonlyargs=[argument for argument in arguments.posonlyargs if argument is not first],
        args=[argument for argument in arguments.args if argument is not first],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
