"""A site of a few pages with the extensions of `docs/_ext`, built in this process, and what Sphinx had to say about it."""

import io
import re
from dataclasses import dataclass
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"


@dataclass(frozen=True)
class SmallSite:
    """A built site: its application, its warnings one a line, and a page as a reader sees it."""

    app: Sphinx
    warnings: list[str]

    def html(self, page: str = "index") -> str:
        return (Path(self.app.outdir) / f"{page}.html").read_text("utf-8")

    def text(self, page: str = "index") -> str:
        """The words of a page without its marks."""
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", self.html(page)))


def write_site(folder: Path, extensions: list[str], **pages: str) -> None:
    """Write the pages; `index` is one of them."""
    loaded = ["myst_parser", *extensions]
    (folder / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\nextensions = {loaded}\n"
        "nitpicky = True\nsmartquotes = False\nmyst_heading_anchors = 3\n"
    )
    for name, page in pages.items():
        head = "" if name == "index" else "---\norphan: true\n---\n\n"
        (folder / f"{name}.md").write_text(f"{head}# Page\n\n{page}\n")


def build(folder: Path, *, everything: bool = True, processes: int = 1) -> SmallSite:
    """Build the site that `write_site` has written."""
    said = io.StringIO()
    with docutils_namespace():
        app = Sphinx(
            folder, folder, folder / "out", folder / "trees", "html", status=None, warning=said, parallel=processes
        )
        app.build(force_all=everything)
    lines = re.sub(r"\x1b\[[\d;]*m", "", said.getvalue()).splitlines()
    return SmallSite(app, [line.replace(f"{folder}/", "") for line in lines if line.strip()])


def small_site(folder: Path, extensions: list[str], **pages: str) -> SmallSite:
    """Write a site and build it."""
    write_site(folder, extensions, **pages)
    return build(folder)
