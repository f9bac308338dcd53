"""The oracle finds what a reader sees, in the document trees of Sphinx and without our lexer."""

import ast
from pathlib import Path

import pytest

from reference_impl.doctesting import oracle

CONF = """
import sys
sys.path.insert(0, {package!r})
extensions = ["myst_parser", "reference_impl.doctesting.sphinx_roles", "autodoc2"]
myst_enable_extensions = ["colon_fence"]
autodoc2_packages = [{{"path": "../thing.py", "auto_mode": False}}]
autodoc2_docstring_parser_regexes = [(r".*", "myst")]
autodoc2_index_template = None
autodoc2_render_plugin = "myst"
nitpicky = True
"""

PAGE = """# Title

```python
plain
```

```{code-block} yaml
:caption: a caption

captioned
```

:::{note}
```console
noted
```
:::

- a list

  ~~~text
  listed
  ~~~

> ```json
> quoted
> ```

```{literalinclude} ../thing.py
:lines: 1
:tested-by: tests/test_thing.py
```

```
unlabelled
```

text

    indented

```{include} part.txt
```

<pre>html</pre>

<!--
```python
commented
```
-->

It is {value}`5 <len("12345")>`.

```{autodoc2-object} thing.do
```
"""

THING = '''"""A thing."""


def do():
    """Do it.

    ```python
    documented
    ```
    """
'''


def site(folder: Path, page: str) -> oracle.Shown:
    """Write a site of one page about one module, with a README beside it, and read it."""
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "conf.py").write_text(CONF.format(package=str(Path(__file__).parents[2])), "utf-8")
    (folder / "thing.py").write_text(THING, "utf-8")
    (folder / "README.md").write_text("# Readme\n\n```text\nbeside\n```\n", "utf-8")
    (folder / "docs" / "part.txt").write_text("\n\n```toml\nincluded\n```\n", "utf-8")
    (folder / "docs" / "index.md").write_text(page, "utf-8")
    return oracle.build(folder / "docs", folder, [folder / "README.md"])


@pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")
def test_every_listing_that_a_reader_sees_is_found_with_its_place(tmp_path: Path) -> None:
    """Wherever it stands and whatever file it is written in; what is in a comment is not shown."""
    shown = site(tmp_path, PAGE)
    lines = PAGE.split("\n")
    index = tmp_path / "docs" / "index.md"
    assert not shown.warnings
    assert shown.pages == {index, tmp_path / "README.md"}
    written = {(at.text.strip(), lines[at.line - 1].strip("- >")) for at in shown.listings if at.source == index}
    assert written == {
        ("plain", "```python"),
        ("captioned", "```{code-block} yaml"),
        ("noted", "```console"),
        ("listed", "~~~text"),
        ("quoted", "```json"),
        ('"""A thing."""', "```{literalinclude} ../thing.py"),
        ("unlabelled", "```"),
        ("indented", "indented"),
        ("<pre>html</pre>", "<pre>html</pre"),
    }
    elsewhere = {(at.source.name, at.line, at.text.strip()) for at in shown.listings if at.source != index}
    assert elsewhere == {("part.txt", 3, "included"), ("thing.py", 3, "documented"), ("README.md", 3, "beside")}


@pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")
@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("# Title\n\n{value}`5`\n", "'5' is no value"),
        ("# Title\n\n{doc}`no-such-page`\n", "no-such-page"),
        ("# Title\n\n```{literalinclude} ../no.py\n```\n", "no.py"),
        ("# Title\n\n```{literalinclude} ../thing.py\n:pyobject: undo\n```\n", "undo"),
    ],
)
def test_what_sphinx_warns_about_is_kept(tmp_path: Path, page: str, message: str) -> None:
    """A build with a warning is no proof."""
    assert message in site(tmp_path, page).warnings


def test_a_site_that_cannot_be_built_shows_nothing_and_says_why(tmp_path: Path) -> None:
    """So that a report fails and does not stop short."""
    shown = oracle.build(tmp_path, tmp_path)
    assert "cannot be built" in shown.warnings
    assert not shown.listings


def test_the_oracle_does_not_know_the_lexer() -> None:
    """Neither by name nor through another module, so that a bug in one shows in the other."""
    tree = ast.parse(Path(oracle.__file__).read_text("utf-8"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in imported if name.startswith("reference_impl")}
