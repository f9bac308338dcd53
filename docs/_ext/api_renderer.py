"""Render the API as the source has it, where autodoc2 0.5 would state what is not so.

Left alone, it gives the default `None` to required fields and to every value that is no plain literal, strips
the quotes in `Literal["a"]` and then looks for a class `a`, takes what `Annotated` carries for types, links base classes
that are private, shows one signature where there are overloads, and gives enums and the like the constructor of a base
class that nobody calls. How a default is written down, `Field(10.0, description=...)`, is not what a reader asks for: the
default is shown, and the description in the place of one.
"""

import ast
import importlib
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from astroid import nodes as astroid_nodes  # type: ignore[import-untyped]
from autodoc2 import astroid_utils
from autodoc2.render.myst_ import MystRenderer
from sphinx.application import Sphinx

LONGEST_VALUE = 60  # letters of a value in a signature
EMPTY = {"list": "[]", "dict": "{}", "tuple": "()"}

_resolve_annotation = astroid_utils.resolve_annotation


def resolve_annotation(annotation: astroid_nodes.NodeNG) -> str:
    """Resolve an annotation: what a `Literal` holds stays as it is written, and an `Annotated` type is its type."""
    if isinstance(annotation, astroid_nodes.Subscript):
        base = _resolve_annotation(annotation.value)
        if base in {"typing.Annotated", "typing_extensions.Annotated"}:
            assert isinstance(annotation.slice, astroid_nodes.Tuple)
            return resolve_annotation(annotation.slice.elts[0])
        if base in {"typing.Literal", "typing_extensions.Literal"}:
            written = annotation.slice.as_string()
            return f"{base}[{written[1:-1] if isinstance(annotation.slice, astroid_nodes.Tuple) else written}]"
    return str(_resolve_annotation(annotation))


@cache
def _values(file: str, _changed: int) -> dict[int, ast.expr | None]:
    """Map the line of each assignment in a file to its right-hand side, None where there is none."""
    tree = ast.parse(Path(file).read_text("utf-8"))
    return {node.lineno: node.value for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.AnnAssign))}


def default_of(value: ast.expr | None) -> str | None:
    """A value as a reader of the signature needs it; None for a field that has to be given.

    Of pydantic's `Field` and of `dataclasses.field` that is the default in it. A value too long for a signature is left to the
    source, which every entry links to.
    """
    if _is_call_of(value, "Field"):
        given = value.args[0] if value.args else _argument(value, "default")
        # A section of a recipe: all of its keys have defaults of their own.
        value = None if isinstance(given, ast.Call) else given
    elif _is_call_of(value, "field"):
        factory = _argument(value, "default_factory")
        if isinstance(factory, ast.Lambda):
            value = factory.body
        elif factory is not None:
            return EMPTY.get(ast.unparse(factory), f"{ast.unparse(factory)}()")
        else:
            value = _argument(value, "default")
    if value is None:
        return None
    written = ast.unparse(value)
    return written if len(written) <= LONGEST_VALUE else "…"


def description_of(value: ast.expr | None, module: str) -> str:
    """What pydantic's `Field` says of a field, read in its module where it is put together; empty without one."""
    said = _argument(value, "description") if _is_call_of(value, "Field") else None
    if said is None or isinstance(said, ast.Constant):
        return str(said.value) if said else ""
    return str(eval(ast.unparse(said), vars(importlib.import_module(module))))


def _is_call_of(value: ast.expr | None, name: str) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == name


def _argument(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


class Renderer(MystRenderer):
    """Render items with their values and overloads taken from the source."""

    def get_item(self, full_name: str) -> Any:
        """Look an item up, passing over the constructors that come from other projects: `Enum(*args, **kwds)`."""
        item = super().get_item(full_name)
        if item is not None and full_name.endswith(".__init__") and "inherited" in item:
            return item if item["inherited"].split(".")[0] == full_name.split(".")[0] else None
        return item

    def render_class(self, item: Any) -> Iterator[str]:
        """Render a class without the bases that are private: they have no entry to link to."""
        bases = [base for base in item.get("bases", []) if not base.rpartition(".")[2].startswith("_")]
        lines = list(super().render_class({**item, "bases": bases}))
        start = self.get_item(f"{item['full_name']}.__init__")
        if start and start["doc"] in ("", object.__init__.__doc__):
            # A constructor is described by its class; without words of its own it needs no heading of its own.
            at = lines.index("```{rubric} Initialization") if "```{rubric} Initialization" in lines else len(lines)
            end = next((n for n in range(at + 3, len(lines)) if lines[n] == "```"), at)
            del lines[at : end + 1]
        yield from lines

    def render_data(self, item: Any) -> Iterator[str]:
        """Render a variable or a field; the value is the text of the source, and a required field has none."""
        lines = list(super().render_data(item))
        at = next(n for n, line in enumerate(lines) if line.startswith(":value:"))
        # A value that autodoc2 can print takes a second line.
        end = at + (2 if lines[at].endswith(">") and lines[at] != ":value: <Multiline-String>" else 1)
        module, value = self._value(item)
        default = default_of(value)
        lines[at:end] = [] if default is None else [f":value: {json.dumps(default, ensure_ascii=False)}"]
        if said := description_of(value, module):
            lines[lines.index("````") : lines.index("````")] = [said, ""]
        yield from lines

    def render_function(self, item: Any) -> Iterator[str]:
        """Render a function with all its overloads."""
        yield from self._with_overloads(super().render_function(item), item)

    def render_method(self, item: Any) -> Iterator[str]:
        """Render a method with all its overloads."""
        yield from self._with_overloads(super().render_method(item), item, ignore_self="self")

    def _value(self, item: Any) -> tuple[str, ast.expr | None]:
        """The module of an item, and what is assigned to it there."""
        owner = item["full_name"]
        while "file_path" not in (self.get_item(owner) or {}):
            owner = owner.rpartition(".")[0]
        file = Path((self.get_item(owner) or {})["file_path"])
        return owner, _values(str(file), file.stat().st_mtime_ns).get(item["range"][0])

    def _with_overloads(self, rendered: Iterable[str], item: Any, ignore_self: str | None = None) -> Iterator[str]:
        """Replace the signature of the implementation by those that a caller may use."""
        head, *body = rendered
        overloads = list(self._db.get_overloads(item["full_name"]))
        if not overloads:
            yield from [head, *body]
            return
        opening, name = head.partition("}")[0] + "}", item["full_name"].rpartition(".")[2]
        *others, last = [f"{opening} {name}{self._signature(overload, ignore_self)}" for overload in overloads]
        for signature in others:
            # Only the last one is the target of links.
            yield from [signature, ":no-index:", "````", ""]
        yield from [last, *body]

    def _signature(self, overload: Any, ignore_self: str | None) -> str:
        returned = overload.get("return_annotation")
        arguments = self.format_args(overload["args"], True, ignore_self=ignore_self)
        return f"({arguments})" + (f" -> {self.format_annotation(returned)}" if returned else "")


def setup(_app: Sphinx) -> dict[str, Any]:
    """Mend the annotations; the renderer itself is named by `autodoc2_render_plugin`."""
    astroid_utils.resolve_annotation = resolve_annotation
    return {"parallel_read_safe": True, "parallel_write_safe": True}
