"""The recipes on the pages are held to the schema, whole or in part."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.fixture(scope="module")
def validate() -> Callable[[str, Path | None], bool]:
    """Return the validator of the repository's conftest, which is no module that could be imported by name."""
    spec = importlib.util.spec_from_file_location("repository_conftest", CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.validate_yaml


def test_a_part_of_a_recipe_passes(validate: Callable[[str, Path | None], bool]) -> None:
    """It is completed by the defaults."""
    assert validate("policy:\n  generation:\n    temperature: 1.0\n", None)


@pytest.mark.parametrize("text", ["", "3", "[policy]", "services: {}"])
def test_what_is_no_recipe_is_not_known(validate: Callable[[str, Path | None], bool], text: str) -> None:
    """It is left to the schema that its page names."""
    assert not validate(text, None)


def test_an_unknown_key_fails_and_is_named(validate: Callable[[str, Path | None], bool]) -> None:
    """With its line in the fence."""
    with pytest.raises(ValueError, match=r"^this fence:4: policy\.generation\.temperatur"):
        validate("policy:\n  # one\n  generation:\n    temperatur: 1.0\n", None)


def test_inherited_recipes_are_sought_beside_the_examples(validate: Callable[[str, Path | None], bool]) -> None:
    """`defaults:` means what it means in `examples/recipes/`, unless the fence is a file elsewhere."""
    assert validate("defaults: base.yaml\npolicy: {}\n", None)
    with pytest.raises(ValueError, match=r"no-such-folder/base\.yaml"):
        validate("defaults: base.yaml\npolicy: {}\n", Path("no-such-folder"))
