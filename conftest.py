"""Collect the pages of the site and the README as tests: every fence is one, run from the root of the repository.

`python -m pytest docs/index.md` runs one page, and `python -m pytest docs README.md` all of them. With pytest-xdist,
add `--dist loadfile`: the fences of a page build on one another.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from sybil import Sybil

from reference_impl.doctesting.evaluators import Checks
from reference_impl.doctesting.sybil_parser import FenceParser

ROOT = Path(__file__).parent
DOCS = ROOT / "docs"
RECIPES = ROOT / "examples" / "recipes"


def validate_yaml(data: Any) -> None:
    """Hold every recipe, and every part of one, to the schema: what has a `policy`. Other YAML need only parse."""
    if not isinstance(data, dict) or "policy" not in data:
        return
    # Only a page with a recipe needs the loader, and whoever runs another test should not wait for it.
    from reference_impl.config.loader import load_recipe

    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "fence.yaml"
        recipe.write_text(yaml.safe_dump(_beside_the_recipes(data), sort_keys=False), encoding="utf-8")
        try:
            load_recipe(recipe)
        except ValueError as error:
            raise ValueError(str(error).replace(str(recipe), "this fence")) from None


def _beside_the_recipes(data: dict[str, Any]) -> dict[str, Any]:
    """Name the files a recipe inherits from as if it lay in `examples/recipes/`, where a reader would save it."""
    defaults = data.get("defaults")
    if isinstance(defaults, str):
        return {**data, "defaults": str(RECIPES / defaults)}
    if isinstance(defaults, list):
        return {**data, "defaults": [str(RECIPES / name) for name in defaults]}
    return data


_collect_fences = Sybil(
    [FenceParser(Checks(root=ROOT, pages=DOCS, validate_yaml=validate_yaml))], patterns=["*.md"]
).pytest()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the README and the pages, however deep: Sybil's own patterns stop at one folder below `docs/`."""
    is_page = file_path.is_relative_to(DOCS) and not file_path.is_relative_to(DOCS / "_build")
    return _collect_fences(file_path, parent) if is_page or file_path == ROOT / "README.md" else None
