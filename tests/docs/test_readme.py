"""The files that a forge shows name what exists. They have no roles, so plain names may be keys and commands there."""

from pathlib import Path

import pytest
from vocabulary import accepts, plain_words

ROOT = Path(__file__).parents[2]

# Beyond what the pages may say.
ALSO = {
    "README.md": {
        *(
            f".venv/bin/genref {command}"
            for command in ("report RUN", "lint FILE", "plan FILE", "conformance --backend NAME")
        ),
        # The last is there once the site has been built.
        *("--fix", "doctesting", "planning", "docs/_build/html/index.html"),
    },
    "CHANGELOG.md": {"pytest --docs-report", "smollm2", "tiny"},
}


@pytest.mark.parametrize("name", ALSO)
def test_every_name_exists(name: str) -> None:
    """A key, a command, a path, a make target, or a word of the code: `accepts` knows what it is."""
    words = plain_words((ROOT / name).read_text("utf-8")) - ALSO[name]
    unknown = sorted(word for word in words if (accepts(word) or "").startswith("unknown"))
    assert not unknown
