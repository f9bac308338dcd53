"""The files that a forge shows name what exists, and promise what the site does. They have no roles, so plain names may be keys
and commands there."""

import re
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


def promise(text: str) -> str:
    """What a page says before its second section, without pictures, roles, and what its links lead to."""
    text = re.split(r"^## ", text, flags=re.MULTILINE)[:2]
    text = re.sub(r"```\{image\}.*?```|!\[.*?\]\(.*?\)", "", "".join(text), flags=re.DOTALL)
    text = re.sub(r"\{value\}`(.*?) <.*?>`|\{command\}(`.*?`)", r"\1\2", text)
    return " ".join(re.sub(r"\[.*?\]\((?:docs/)?(.*?)\)", r"\1", text).split())


def test_readme_and_first_page_promise_the_same():
    readme, index = (promise((ROOT / name).read_text("utf-8")) for name in ("README.md", "docs/index.md"))
    assert len(index) > 1000
    assert readme.startswith(index)
