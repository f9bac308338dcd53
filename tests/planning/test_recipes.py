"""The recipes in `examples/recipes/`: each loads, plans, says what it is for, and is named on a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_impl.config.loader import load_recipe
from reference_impl.models.shapes import find_shape
from reference_impl.planning.plan import make_plan
from reference_impl.planning.text import WIDTH, as_text

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


def load(name: str):
    return load_recipe(ROOT / "examples" / "recipes" / f"{name}.yaml")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_what_it_is_for(path):
    lines = path.read_text("utf-8").splitlines()
    assert lines[0].startswith("# ")
    assert lines[0][2].isupper()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_plans_and_runs_something(path):
    recipe = load_recipe(path)
    plan = make_plan(recipe, find_shape(recipe.policy.model_name))
    assert plan.concurrency.at_once > 0
    assert all(len(line) <= WIDTH for line in as_text(plan, 80).splitlines())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_named_on_a_page(path):
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    assert [page for page in [*pages, ROOT / "README.md"] if path.name in page.read_text("utf-8")]


def test_recipes_differ_in_what_their_names_say():
    def of(name):
        generation = load(name).policy.generation
        return generation.mode, generation.mcore_generation_config.kv_cache_management_mode

    assert of("smollm2-megatron") == ("direct", "persist")
    assert of("smollm2-megatron-async") == ("coordinator", "persist")
    assert of("smollm2-megatron-recompute") == ("coordinator", "recompute")
    assert of("smollm2-megatron-offload") == ("direct", "offload")
    assert of("grpo-tiny-megatron-sync") == ("direct", "persist")
    assert of("grpo-tiny-megatron-async") == ("coordinator", "persist")
