"""The lexer finds every block of a page that a reader may take for code, where it is and as it is."""

import pytest

from reference_impl.doctesting.fences import HIDDEN, INDENTED, RAW_HTML, UNLABELLED, fences, split_options


def kinds(page: str) -> list[str]:
    return [fence.kind for fence in fences(page)]


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("```python\nx\n```\n", "python"),
        ("~~~python\nx\n~~~\n", "python"),
        ("````python\nx\n````\n", "python"),
        ("```python\nx\n", "python"),
        ("- ```python\n  x\n  ```\n", "python"),
        ("1. a\n\n   - b\n\n     ```yaml\n     a: 1\n     ```\n", "yaml"),
        ("> ```python\n> x\n> ```\n", "python"),
        ("Term\n: definition\n\n  ```python\n  x\n  ```\n", "python"),
        ("[^a]: note\n\n    ```python\n    x\n    ```\n\nx[^a]\n", "python"),
        ("{emphasize-lines=1}\n```python\nx\n```\n", "python"),
        ("```{code-block} python\nx\n```\n", "python"),
        ("```{sourcecode} python\nx\n```\n", "python"),
        (":::{code-block} python\nx\n:::\n", "python"),
        ("```{graphviz}\ndigraph {}\n```\n", "{graphviz}"),
        (":::{graphviz}\ndigraph {}\n:::\n", "{graphviz}"),
        ("```{doctest}\n>>> 1\n1\n```\n", "{doctest}"),
        ("```py\nx\n```\n", "py"),
        ("```python \nx\n```\n", "python "),
        ("``` python\nx\n```\n", " python"),
        ("```python title=a\nx\n```\n", "python title=a"),
        ("```{code-block} python \nx\n```\n", "python "),
        ("```\nx\n```\n", UNLABELLED),
        ("```{code-block}\nx\n```\n", UNLABELLED),
        ("text\n\n    x = 1\n", INDENTED),
        ("<!--\n```python\nx\n```\n-->\n", HIDDEN),
        ("text\n\n<!-- a\n\n```python\nx\n```\n-->\n", HIDDEN),
        ("% ```python\n% x\n% ```\n", HIDDEN),
        ("<pre>x = 1</pre>\n", RAW_HTML),
        ("<!-- a --><pre>x = 1</pre>\n", RAW_HTML),
        ("<div>\n```python\nx\n```\n</div>\n", RAW_HTML),
        ("see <code>x = 1</code>\n", RAW_HTML),
    ],
)
def test_a_block_comes_out_with_its_kind(page: str, kind: str) -> None:
    """However it is spelt and wherever it stands; a language is taken to the letter."""
    assert kinds(page) == [kind]


@pytest.mark.parametrize(
    "page",
    [
        "# Title\n\nText with `code` and $x$.\n",
        "<!-- a remark -->\n",
        "% a remark\n",
        '<img src="a.svg" alt="a">\n',
        "---\ntitle: a\n---\n\n# Title\n",
        "$$\nx\n$$\n",
    ],
)
def test_what_is_no_block_of_code_does_not_come_out(page: str) -> None:
    """Prose, remarks, pictures, front matter and formulas are nobody's to run."""
    assert kinds(page) == []


@pytest.mark.parametrize(
    "page",
    [
        ":::{note}\n```python\nx\n```\n:::\n",
        "````{tip}\n```python\nx\n```\n````\n",
        ":::{warning}\n:class: wide\n\n```python\nx\n```\n:::\n",
        "````{important}\n---\nclass: wide\n---\n```python\nx\n```\n````\n",
        ":::{admonition} A title\n```python\nx\n```\n:::\n",
        ":::{dropdown} A title\n```python\nx\n```\n:::\n",
        "::::{tab-set}\n:::{tab-item} A\n```python\nx\n```\n:::\n::::\n",
        "- a\n\n  :::{note}\n  ```python\n  x\n  ```\n  :::\n",
        ":::{note} Words first.\n```python\nx\n```\n:::\n",
        ":::{note} ```python\nx\n```\n:::\n",
    ],
)
def test_directives_that_hold_markdown_are_entered(page: str) -> None:
    """A fence in a note is a fence of the page, on the page's own lines."""
    [fence] = fences(page)
    lines = page.split("\n")
    assert (fence.kind, fence.source) == ("python", "x\n")
    assert "```python" in lines[fence.line - 1]
    assert lines[fence.source_line - 1].strip() == "x"
    assert lines[fence.last_line - 1].strip() == "```"


def test_a_displayed_page_is_not_entered() -> None:
    """Markdown shown as text holds no fences of its own."""
    assert kinds("````markdown\n```python\nx\n```\n````\n") == ["markdown"]


def test_fences_come_in_the_order_of_the_page_with_their_lines() -> None:
    """Lines count from 1 and hold the fence marks."""
    page = "# Title\n\n```yaml\na: 1\n```\n\n```{code-block} python\n:caption: c\n\nx = 1\n```\n"
    first, second = fences(page)
    assert (first.kind, first.line, first.source_line, first.last_line) == ("yaml", 3, 4, 5)
    assert (second.kind, second.line, second.source_line, second.last_line) == ("python", 7, 10, 11)
    assert (second.source, second.options, second.argument) == ("x = 1\n", {"caption": "c"}, "python")


@pytest.mark.parametrize(
    ("content", "options", "body", "lines_before"),
    [
        ("x\n", {}, "x\n", 0),
        ("\nx\n", {}, "x\n", 1),
        (":a: 1\n:b:\n\nx\n", {"a": "1", "b": ""}, "x\n", 3),
        (":a: 1\nx\n", {"a": "1"}, "x\n", 1),
        ("---\na: 1\n---\nx\n", {"a": "1"}, "x\n", 3),
        (":::{note}\n:::\n", {}, ":::{note}\n:::\n", 0),
        ("", {}, "", 0),
    ],
)
def test_options_are_no_part_of_the_source(content: str, options: dict[str, str], body: str, lines_before: int) -> None:
    """Both of MyST's forms are parted from the body."""
    assert split_options(content) == (options, body, lines_before)
