"""Docstrings are read as pages are, from the source alone, with the lines of their file."""

import textwrap
from pathlib import Path

import pytest
from support.pages import run
from sybil import Document
from sybil.example import SybilFailure

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.docstrings import docstrings
from reference_impl.doctesting.sybil_parser import FenceParser, is_ours

SOURCE = '''"""A module.

```pycon
>>> 1
1
```
"""

raise RuntimeError("never imported")

LIMIT = 3
"""A limit.

```python
limit = 3
```
"""

class A:
    """A class with `{graphviz}` and "```" in its words."""

    size: int = 1
    """A field."""

    async def f(self):
        r"""Do it.

        - in a list

          ```python
          assert "\\n" == chr(10)
          assert limit
          ```
        """
        "no docstring"
'''


def test_each_kind_of_docstring_is_found_with_its_line() -> None:
    """Module, attributes, classes and functions, in the order of the file; other strings are none."""
    found = [(above + 1, text.split("\n")[0]) for above, text in docstrings(SOURCE)]
    lines = SOURCE.split("\n")
    assert [text for _, text in found] == [
        "A module.",
        "A limit.",
        'A class with `{graphviz}` and "```" in its words.',
        "A field.",
        "Do it.",
    ]
    assert all(text in lines[line - 1] for line, text in found)


def test_fences_have_the_lines_of_the_file(tmp_path: Path) -> None:
    """A docstring is dedented, and its lines stay those of the file."""
    (tmp_path / "m.py").write_text(SOURCE, "utf-8")
    checks = Checks(root=tmp_path, pages=tmp_path)
    cases = [example.parsed for example in Document.parse(str(tmp_path / "m.py"), FenceParser(checks))]
    lines = SOURCE.split("\n")
    assert [lines[case.fence.line - 1].strip() for case in cases] == ["```pycon", "```python", "```python"]
    assert [lines[case.fence.source_line - 1].strip() for case in cases] == [
        ">>> 1",
        "limit = 3",
        'assert "\\n" == chr(10)',
    ]
    assert [case.above for case in cases] == [0, 11, 25]


def test_each_docstring_stands_on_its_own(tmp_path: Path) -> None:
    """A reader of the API sees one object, so that nothing is taken from another docstring, nor from the module."""
    with pytest.raises(NameError, match="limit"):
        run(tmp_path, SOURCE, name="m.py")


def test_a_wrong_docstring_fails_with_the_line_of_the_file(tmp_path: Path) -> None:
    """As on a page."""
    with pytest.raises(SybilFailure, match=r"m\.py, line 4, column 1"):
        run(tmp_path, 'def f():\n    """Do.\n\n    ```py\n    1 / 0\n    ```\n    """\n', name="m.py")


def test_only_files_with_a_fence_are_collected(tmp_path: Path) -> None:
    """A file whose docstrings speak of fences in inline code has none."""
    checks = Checks(root=tmp_path, pages=tmp_path / "docs", beside=[tmp_path / "package"])
    (tmp_path / "package").mkdir()
    for name, docstring, collected in [
        ("with.py", "Do.\n\n```python\nx = 1\n```\n", True),
        ("indented.py", "Do.\n\nAs in:\n\n    x = 1\n", True),
        ("without.py", "Give `{graphviz}` and ` ``` ` a meaning.\n", False),
    ]:
        file = tmp_path / "package" / name
        file.write_text(f'def f():\n    """{textwrap.indent(docstring, "    ").lstrip()}    """\n', "utf-8")
        assert is_ours(file, checks) is collected, name


def test_this_package_speaks_of_fences_without_holding_any() -> None:
    """Its own docstrings name fence marks and kinds throughout."""
    package = Path(__file__).parents[2] / "reference_impl" / "doctesting"
    checks = Checks(root=package, pages=package, beside=[package])
    assert not [file for file in package.rglob("*.py") if is_ours(file, checks)]
