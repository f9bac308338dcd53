"""The API pages state what the source states: values, literals, overloads and constructors."""

import io
from pathlib import Path

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

# autodoc2 0.5.0 still asks Sphinx for its application in a way that Sphinx 11 will refuse.
pytestmark = pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"

SOURCE = '''
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, overload

from pydantic import BaseModel, Field


class Mode(Enum):
    """A mode."""

    FAST = "fast"


@dataclass
class Options:
    """Options."""

    required: int
    hidden: int = field(repr=False)
    mode: Mode = Mode.FAST
    below: int = -1
    product: int = 2 * 1024
    name: str = "a"
    choice: Literal["a", "b"] = "a"
    nothing: int | None = None
    many: dict[str, int] = field(default_factory=dict)
    some: set[int] = field(default_factory=set)
    later: int = field(default_factory=lambda: 3 + 4)
    shown: int = field(default=5, repr=False)
    lines: str = """a
b"""

    def run(self, how: Literal["x"], limit: int = -1, *, mode: Mode = Mode.FAST) -> None:
        """Run."""


class Wrong(ValueError):
    """Wrong."""

    def __init__(self, why: str) -> None:
        super().__init__(why)


UNIT = "ms"
TABLE = {"a": "one", "b": "two", "c": "three", "d": "four", "e": "five", "f": "six", "g": "seven"}


class Keys(BaseModel):
    """Keys."""

    size: float = Field(10.0, gt=0, description="How large.")
    wanted: int = Field(gt=0, description="Has to be given.")
    section: Options = Field(Options(1, 2), description="A section.")
    taken: int = Field(3, description=f"In {UNIT}.")


@overload
def twice(value: int) -> int: ...
@overload
def twice(value: str) -> str: ...
def twice(value):
    """Return twice the value."""
    return value + value
'''

CONF = f"""
import sys
sys.path[:0] = [{str(EXTENSIONS)!r}, __file__.rpartition("/")[0]]
extensions = ["myst_parser", "autodoc2", "api_renderer"]
autodoc2_packages = [{{"path": "../sample.py", "auto_mode": False}}]
autodoc2_render_plugin = "api_renderer.Renderer"
autodoc2_docstring_parser_regexes = [(".*", "myst")]
autodoc2_class_docstring = "merge"
autodoc2_hidden_objects = ["dunder", "inherited"]
python_use_unqualified_type_names = True
"""

PAGE = """# API

```{autodoc2-object} sample.Mode
```

```{autodoc2-object} sample.Options
```

```{autodoc2-object} sample.Wrong
```

```{autodoc2-object} sample.TABLE
```

```{autodoc2-object} sample.Keys
```

```{autodoc2-object} sample.twice
```
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build one page about `SOURCE` as plain text and return its lines."""
    root = tmp_path_factory.mktemp("project")
    (root / "docs").mkdir()
    (root / "sample.py").write_text(SOURCE, "utf-8")
    (root / "conf.py").write_text(CONF, "utf-8")
    (root / "docs" / "index.md").write_text(PAGE, "utf-8")
    said = io.StringIO()
    with docutils_namespace():
        Sphinx(root / "docs", root, root / "out", root / "trees", "text", status=None, warning=said).build()
    assert not said.getvalue()
    return [line.strip() for line in (root / "out" / "index.txt").read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    "shown",
    [
        "required: int",
        "mode: Mode = Mode.FAST",
        "below: int = -1",
        "product: int = 2 * 1024",
        "name: str = 'a'",
        "choice: Literal['a', 'b'] = 'a'",
        "nothing: int | None = None",
        "many: dict[str, int] = {}",
        "some: set[int] = set()",
        "later: int = 3 + 4",
        "hidden: int",
        "shown: int = 5",
        "size: float = 10.0",
        "How large.",
        "wanted: int",
        "Has to be given.",
        "section: Options",
        "taken: int = 3",
        "In ms.",
        "exception sample.Wrong(why: str)",
        "sample.TABLE = …",
        r"lines: str = 'a\nb'",
        "run(how: Literal['x'], limit: int = -1, *, mode: Mode = Mode.FAST) -> None",
        "sample.twice(value: int) -> int",
        "sample.twice(value: str) -> str",
        "class Mode",
    ],
)
def test_a_signature_is_the_source_s(lines: list[str], shown: str) -> None:
    """Each line is what a reader would write; autodoc2 alone gets most of them wrong."""
    assert shown in lines


def test_a_constructor_without_words_has_none(lines: list[str]) -> None:
    """autodoc2 alone takes those of `object`."""
    assert not [line for line in lines if "Initialize self" in line or "Initialization" in line]


def test_the_implementation_of_overloads_is_not_shown(lines: list[str]) -> None:
    """Callers may only use the overloads."""
    assert not [line for line in lines if line.startswith("sample.twice(value)")]
