"""The site of this repository, built once for all tests that read it, whichever process they run in."""

import io
import os
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Site:
    """A built site: Sphinx's own view of the pages, the folder of HTML, and what Sphinx had to say."""

    app: Sphinx
    html: Path
    warnings: str


def built(base: Path) -> Site:
    """The site in a folder beside those of the test processes, `base` being this one's."""
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    html, trees, said = folder / "html", folder / "doctrees", folder / "said"
    with FileLock(f"{folder}.lock"), docutils_namespace():
        if said.exists():
            return Site(
                Sphinx(DOCS, ROOT, html, trees, "html", status=None, warning=None), html, said.read_text("utf-8")
            )
        warnings = io.StringIO()
        app = Sphinx(DOCS, ROOT, html, trees, "html", status=None, warning=warnings, freshenv=True)
        app.build(force_all=True)
        said.write_text(warnings.getvalue(), "utf-8")
        return Site(app, html, warnings.getvalue())
