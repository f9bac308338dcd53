"""Render the API as the source has it, where autodoc2 0.5 would state what is not so.

Left alone, it gives the default `None` to required fields and to every value that is no plain literal, strips
the quotes in `Literal["a"]` and then looks for a class `a`, takes what `Annotated` carries for types, links base classes
that are private, shows one signature where there are overloads, and gives enums and the like the constructor of a base
class that nobody calls.
"""

import ast
import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from astroid import nodes as astroid_nodes  # type: ignore[import-untyped]
from autodoc2 import astroid_utils
from autodoc2.render.myst_ import MystRenderer
from sphinx.application import Sphinx

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
def _values(file: str, _changed: int) -> dict[int, str | None]:
    """Map the line of each assignment in a file to its right-hand side, None where there is none."""
    tree = ast.parse(Path(file).read_text("utf-8"))
    return {
        node.lineno: ast.unparse(node.value) if node.value else None
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
    }


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
        if start and not start["doc"]:
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
        value = self._value(item)
        lines[at:end] = [] if value is None else [f":value: {json.dumps(value, ensure_ascii=False)}"]
        yield from lines

    def render_function(self, item: Any) -> Iterator[str]:
        """Render a function with all its overloads."""
        yield from self._with_overloads(super().render_function(item), item)

    def render_method(self, item: Any) -> Iterator[str]:
        """Render a method with all its overloads."""
        yield from self._with_overloads(super().render_method(item), item, ignore_self="self")

    def _value(self, item: Any) -> str | None:
        owner = item["full_name"]
        while "file_path" not in (self.get_item(owner) or {}):
            owner = owner.rpartition(".")[0]
        file = Path((self.get_item(owner) or {})["file_path"])
        return _values(str(file), file.stat().st_mtime_ns).get(item["range"][0])

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
