"""What is checked and how: the settings of a project, and one example of a page with what it needs to know of the page.

Every evaluator takes a `Case`; `reference_impl.doctesting.pages` makes them.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reference_impl.doctesting.fences import Fence


def know_nothing(text: str, folder: Path | None) -> bool:
    """Validate nothing: the default for YAML, which leaves all of it to the schema that the page names."""
    return False


def accept_any(text: str) -> Iterable[tuple[int, str]]:
    """Find nothing to say about a page's prose: the default."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Checks:
    """How a project wants its pages checked.

    `root` is where commands and code run, and what schemas and tests are named from. `pages` is the folder that Sphinx
    reads, and `conf` that of its `conf.py`, when it is another. `beside` names what is collected besides: Markdown files
    outside the site, and Python packages whose docstrings hold fences.

    `validate_yaml` is given the text of each `yaml` fence, and the folder of the file that it is, if its caption names
    one; it raises `ValueError` for what the project would refuse, and tells whether it knows this sort of data: what it
    does not know needs a JSON schema. `check_prose` is given a page and yields what is wrong with its prose, each with its
    line. `directives` are those of the project whose content Sphinx makes, and checks, when the site is built.

    `scratch` is the folder that the captions of fences name files in, which running a page writes. `names` may be used in
    the expressions of all values, beside what the page defines.
    """

    root: Path
    pages: Path
    conf: Path | None = None
    beside: Collection[Path] = ()
    commands: Collection[str] = frozenset({"genref", "python"})
    directives: Collection[str] = frozenset()
    timeout_seconds: float = 180.0
    scratch: Path | None = None
    names: Mapping[str, Any] = field(default_factory=dict)
    validate_yaml: Callable[[str, Path | None], bool] = know_nothing
    check_prose: Callable[[str], Iterable[tuple[int, str]]] = accept_any


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fence where it stands.

    The cases of a page share `namespace`, the names that its code has defined so far, and `proved`, the first lines of
    the fences that were run and found right. `above` is how many lines of a Python file come before the docstring that
    the fence is in, 0 on a page.
    """

    fence: Fence
    path: Path
    checks: Checks
    before: Fence | None = None
    after: Fence | None = None
    front_matter: Mapping[str, Any] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)
    proved: set[int] = field(default_factory=set)
    above: int = 0


type Evaluator = Callable[[Case], str | None]


def included_file(case: Case) -> Path:
    """Resolve a path as Sphinx does: from the page's folder, or from the site's when it begins with a slash."""
    name = case.fence.argument
    folder = case.checks.pages if name.startswith("/") else case.path.parent
    return Path(os.path.normpath(folder / name.lstrip("/")))
