"""The recipes on the pages are held to the schema, whole or in part."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"


@pytest.fixture(scope="module")
def validate() -> Callable[[Any], bool]:
    """Return the validator of the repository's conftest, which is no module that could be imported by name."""
    spec = importlib.util.spec_from_file_location("repository_conftest", CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.validate_yaml


def test_a_part_of_a_recipe_passes(validate: Callable[[Any], bool]) -> None:
    """It is completed by the defaults."""
    assert validate({"policy": {"generation": {"temperature": 1.0}}})


@pytest.mark.parametrize("data", [None, 3, ["policy"], {"services": {}}])
def test_what_is_no_recipe_is_not_known(validate: Callable[[Any], bool], data: Any) -> None:
    """It is left to the schema that its page names."""
    assert not validate(data)


def test_an_unknown_key_fails_and_is_named(validate: Callable[[Any], bool]) -> None:
    """The message speaks of the fence and not of the file it was written to on the way."""
    with pytest.raises(ValueError, match=r"^this fence:3: policy\.generation\.temperatur"):
        validate({"policy": {"generation": {"temperatur": 1.0}}})


def test_inherited_recipes_are_sought_beside_the_examples(validate: Callable[[Any], bool]) -> None:
    """`defaults:` means what it means in `examples/recipes/`."""
    with pytest.raises(ValueError, match=r"examples/recipes/no-such\.yaml"):
        validate({"defaults": "no-such.yaml", "policy": {}})
