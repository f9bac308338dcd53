"""Sphinx with its environment in memory: a changed page is read and resolved in a fraction of a second."""

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.docutils import patch_docutils

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Site:
    """A site that was read once. `warnings_of` changes it, so it is called in a forked process."""

    def __init__(self, *, pages: Path, conf: Path, folder: Path) -> None:
        self._warnings = io.StringIO()
        self._pages, self._doctrees = pages, folder / "doctrees"
        # Never left: it patches docutils for as long as this process builds.
        patch_docutils(conf).__enter__()
        self._app = Sphinx(
            pages,
            conf,
            folder / "out",
            self._doctrees,
            "dummy",
            confoverrides={"nitpicky": True},
            status=None,
            warning=self._warnings,
            freshenv=True,
        )
        self._app.build()
        self._targets = self._all_targets()

    @property
    def warnings(self) -> str:
        """What Sphinx has warned of so far."""
        return _COLOURS.sub("", self._warnings.getvalue()).strip()

    @contextlib.contextmanager
    def left_as_read(self, page: Path) -> Iterator[None]:
        """Bring back what the site knows of a page after other processes have called `warnings_of`."""
        doctree = self._doctrees / f"{self._name(page)}.doctree"
        as_read = doctree.read_bytes() if doctree.exists() else None
        yield
        if as_read is not None:
            doctree.write_bytes(as_read)

    def warnings_of(self, page: Path) -> str:
        """Read a page again, as it now is, and return what Sphinx warns of there or on a page that refers to it."""
        if not page.is_relative_to(self._pages):
            return ""
        env, builder = self._app.env, self._app.builder
        builder.read()
        env.check_consistency()
        others: set[str] = set() if self._all_targets() == self._targets else env.found_docs - {self._name(page)}
        for name in [self._name(page), *sorted(others)]:
            if not self.warnings:
                env.get_and_resolve_doctree(name, builder)
        return self.warnings

    def _all_targets(self) -> set[Any]:
        """Return everything that a page can refer to; only when that has changed can another page break."""
        env = self._app.env
        named = {
            (domain.name, name, kind, document, anchor)
            for domain in env.domains.sorted()
            for name, _, kind, document, anchor, _ in domain.get_objects()
        }
        slugs = {(page, slug) for page, data in env.metadata.items() for slug in data.get("myst_slugs", ())}
        return named | slugs

    def _name(self, page: Path) -> str:
        return os.path.relpath(page, self._pages).removesuffix(".md")
