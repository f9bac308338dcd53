"""For these tests, the site's own extensions can be imported as Sphinx imports them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory):
    """The site of this repository, built."""
    from support.built_site import built

    return built(tmp_path_factory.getbasetemp())
