"""Links each entry of the API to its lines: the package's files are pages of the site, without a network and without imports."""

import ast
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from api_names import names_of, names_of_entries
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

PACKAGE = "reference_impl"
FOLDER = "source"


@cache
def lines_of(file: Path) -> dict[str, int]:
    """Where each class, function, method and constant of a file is defined, by dotted name within it."""

    def visit(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, int]]:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{owner}{node.name}", node.lineno
                if isinstance(node, ast.ClassDef):
                    yield from visit(node.body, f"{owner}{node.name}.")
            elif isinstance(node, ast.AnnAssign | ast.TypeAlias):
                yield (
                    f"{owner}{ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.name)}",
                    node.lineno,
                )
            elif isinstance(node, ast.Assign):
                yield from ((f"{owner}{ast.unparse(target)}", node.lineno) for target in node.targets)

    return dict(reversed(list(visit(ast.parse(file.read_text("utf-8")).body, ""))))


def find(root: Path, full: str) -> tuple[str, int] | None:
    """The file of a dotted name, from `root`, and its line."""
    parts = full.split(".")
    for end in range(len(parts), 0, -1):
        for file in (root.joinpath(*parts[:end]).with_suffix(".py"), root.joinpath(*parts[:end], "__init__.py")):
            if file.is_file():
                line = lines_of(file).get(".".join(parts[end:]))
                return (file.relative_to(root).as_posix(), line) if line else None
    return None


def page_of(file: str) -> str:
    """The page of a file: `source/reference_impl/rl/queue`."""
    return f"{FOLDER}/{file.removesuffix('.py')}"


def link(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Put a link to its source on each signature."""
    if app.builder.format != "html":
        return
    entries = names_of_entries(app.env, page)
    for signature in tree.findall(addnodes.desc_signature):
        names = sorted(names_of(signature, entries))
        found = next(filter(None, (find(Path(app.confdir), name) for name in names)), None)
        if found:
            file, line = found
            address = (
                f"{relative_uri(app.builder.get_target_uri(page), app.builder.get_target_uri(page_of(file)))}#L{line}"
            )
            shown = nodes.inline("", "source", classes=["source-link"])
            signature += nodes.reference("", "", shown, internal=True, refuri=address)


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{up}_static/source.css">
</head>
<body>
<p><a href="{up}reference/api/index.html">API</a></p>
<h1>{name}</h1>
<pre tabindex="0">{lines}</pre>
</body>
</html>
"""
"""Plain, for colours would be most of the site's bytes, and its navigation most of a build's time."""


def write_pages(app: Sphinx, error: Exception | None) -> None:
    """Write a page for each file of the package, its definitions marked."""
    if error or app.builder.name != "html":
        return
    root = Path(app.confdir)
    for file in sorted((root / PACKAGE).rglob("*.py")):
        defined = set(lines_of(file).values())
        lines = [
            f'<b id="L{number}">{escape(line)}</b>' if number in defined else escape(line)
            for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        ]
        name = file.relative_to(root).as_posix()
        page = Path(app.outdir, page_of(name) + ".html")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.format(name=name, up="../" * page_of(name).count("/"), lines="\n".join(lines)), "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-resolved", link)
    app.connect("build-finished", write_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
