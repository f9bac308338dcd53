"""Collect the pages of the site and the README as tests: every fence is one, run from the root of the repository.

`python -m pytest docs/index.md` runs one page, and `python -m pytest docs README.md reference_impl` all of them and the
docstrings; `--docs-report` adds the count of what a reader sees and what was executed. With pytest-xdist, add
`--dist loadfile`: the fences of a page build on one another.
"""

import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import yaml

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.sybil_parser import collector

pytest_plugins = ["reference_impl.doctesting.pytest_plugin"]

ROOT = Path(__file__).parent
DOCS = ROOT / "docs"
RECIPES = ROOT / "examples" / "recipes"

# The vocabulary of the pages is with the extensions that render its roles.
sys.path.append(str(DOCS / "_ext"))


def validate_yaml(text: str, folder: Path | None) -> bool:
    """Hold every recipe, and every part of one, to the schema: what has a `policy`. Other YAML is not known here.

    A fence that is no file of its own inherits as if it lay beside the recipes.
    """
    data = yaml.safe_load(text)
    if not isinstance(data, dict) or "policy" not in data:
        return False
    # Only a page with a recipe needs the loader, and whoever runs another test should not wait for it.
    from reference_impl.config.loader import check_text

    check_text(text, "this fence", folder or RECIPES)
    return True


def check_prose(text: str) -> Iterable[tuple[int, str]]:
    """Refuse words that look like keys, metrics, commands or names and are not bound, and numbers that nothing gives."""
    from vocabulary import check_prose

    return check_prose(text)


def supported_pythons() -> list[str]:
    """The versions that the package is classified for."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["classifiers"]
    return [line.rpartition(" ")[2] for line in classifiers if line.startswith("Programming Language :: Python :: 3.")]


CHECKS = Checks(
    root=ROOT,
    pages=DOCS,
    conf=ROOT,
    beside=[ROOT / "README.md", ROOT / "reference_impl"],
    directives={
        "alias-table",
        "command-table",
        "glossary",
        "include",
        "key-table",
        "metrics-table",
        "removed-table",
        "timeline",
        "upstream-table",
    },
    scratch=ROOT / "runs",
    names={"pythons": supported_pythons()},
    validate_yaml=validate_yaml,
    check_prose=check_prose,
)
pytest_collect_file = collector(CHECKS)
