"""What Sybil's own MyST parsers pass over in silence: each spelling is found here, and fails with its line."""

from pathlib import Path

import pytest
from support.pages import run
from sybil import Document
from sybil.example import SybilFailure
from sybil.parsers.myst import DocTestDirectiveParser, PythonCodeBlockParser, SkipParser

# Each spelling stands on line 3 of its page and holds code that would raise.
IGNORED = {
    "a space after the language": ("```python \n1 / 0\n```", "no evaluator for 'python '"),
    "words after the language": ("```python title=a\n1 / 0\n```", "no evaluator for 'python title=a'"),
    "a short name": ("```py\n1 / 0\n```", "no evaluator for 'py'"),
    "a name with a version": ("```python3\n1 / 0\n```", "no evaluator for 'python3': did you mean 'python'?"),
    "a session": ("```pycon\n>>> 1 / 0\n```", "division by zero"),
    "no language": ("```\n1 / 0\n```", "a fence names its language"),
    "indented code": ("    1 / 0", "use a fence"),
    "colons": (":::{code-block} python\n1 / 0\n:::", "division by zero"),
    "a directive of sphinx.ext.doctest": ("```{testcode}\n1 / 0\n```", "no evaluator for '{testcode}'"),
    "reStructuredText": ("```{eval-rst}\n.. code:: python\n\n   1 / 0\n```", "no evaluator for '{eval-rst}'"),
    "an included page": ("```{include} other.md\n```", "no evaluator for '{include}'"),
    "a directive without a language": ("```{code-block}\n1 / 0\n```", "a fence names its language"),
}


@pytest.mark.parametrize(("fence", "message"), IGNORED.values(), ids=IGNORED)
def test_what_sybil_ignores_fails_here(tmp_path: Path, fence: str, message: str) -> None:
    """Sybil finds nothing on such a page; here it fails on the line of the spelling."""
    page = f"# Title\n\n{fence}\n"
    (tmp_path / "sybil.md").write_text(page, "utf-8")
    parsers = [PythonCodeBlockParser(), DocTestDirectiveParser(), SkipParser()]
    assert list(Document.parse(str(tmp_path / "sybil.md"), *parsers)) == []
    with pytest.raises((SybilFailure, ZeroDivisionError)) as failure:
        run(tmp_path, page)
    assert message in str(failure.value)
    if failure.type is SybilFailure:
        assert "page.md, line 3, column 1" in str(failure.value)
    else:
        assert (failure.traceback[-1].path, failure.traceback[-1].lineno + 1) == (tmp_path / "page.md", 4)


# What Sybil runs although no reader sees it as code, and what it skips without a word.
ACCEPTED = {
    "a fence in a comment": ("<!--\n```python\nx = 1\n```\n-->", "neither shown nor run"),
    "a fence in a displayed page": ("````markdown\n```python\nx = 1\n```\n````", "no evaluator for 'markdown'"),
    "a skipped statement": ("```{doctest}\n>>> 1 / 0  # doctest: +SKIP\n```", "no evaluator for '{doctest}'"),
    "a skip in a comment": ("% skip: next\n\n```python\n1 / 0\n```", "division by zero"),
}


@pytest.mark.parametrize(("fence", "message"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_sybil_accepts_fails_here(tmp_path: Path, fence: str, message: str) -> None:
    """Sybil runs such a page without complaint."""
    page = f"# Title\n\n{fence}\n"
    (tmp_path / "sybil.md").write_text(page, "utf-8")
    parsers = [PythonCodeBlockParser(), DocTestDirectiveParser(), SkipParser()]
    examples = list(Document.parse(str(tmp_path / "sybil.md"), *parsers))
    assert examples
    for example in examples:
        example.evaluate()
    with pytest.raises((SybilFailure, ZeroDivisionError)) as failure:
        run(tmp_path, page)
    assert message in str(failure.value)


# Spellings that concern no language.
ELIDED = {
    "a percent comment": ("% ```python\n% 1 / 0\n% ```", "neither shown nor run"),
    "a skipped statement of a session": ("```pycon\n>>> 1 / 0  # doctest: +SKIP\n```", "doctest directives"),
    "a loose comparison": ("```pycon\n>>> 1  # doctest: +ELLIPSIS\n1\n```", "doctest directives"),
    "a line that ends the document": ("```yaml\nsteps: 1\n...\n```", "line 5: '...' ends a YAML document"),
    "a value": ("```yaml\nsteps: ...\n```", "line 4: '...' is no value"),
    "an item of a list": ("```yaml\nsteps:\n  - 1\n  - ...\n```", "line 6: '...' is no value"),
    "an item in brackets": ("```yaml\nsteps: [1, ...]\n```", "line 4: '...' is no value"),
    "one character for three": ("```yaml\nsteps: …\n```", "line 4: '…' is no value"),
    "an argument": ("```python\nprint(\n    ...)\n```", "line 5: '...' as an argument"),
    "a named argument": ("```python\ndict(a=...)\n```", "line 4: '...' as an argument"),
    "an argument in a session": ("```pycon\n>>> print(...)\nEllipsis\n```", "line 4: '...' as an argument"),
}


@pytest.mark.parametrize(("fence", "message"), ELIDED.values(), ids=ELIDED)
def test_what_stands_for_something_left_out_fails(tmp_path: Path, fence: str, message: str) -> None:
    """It could not be pasted, or is run by nobody; the failure names the line."""
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, f"# Title\n\n{fence}\n")
    assert message in str(failure.value)
    assert "page.md, line 3, column 1" in str(failure.value)


@pytest.mark.parametrize(
    "fence",
    [
        "```python\nfrom typing import Protocol\n\n\nclass P(Protocol):\n    def f(self) -> int: ...\n```",
        "```python\nx: tuple[int, ...] = (1,)\n```",
        "```yaml\nsteps: '...'\n```",
        "```yaml\n# ...\nsteps: 1\n```",
    ],
)
def test_three_dots_that_mean_something_pass(tmp_path: Path, fence: str) -> None:
    """A body of a protocol, a type, a quoted text and a comment leave nothing out that would be needed to run."""
    run(tmp_path, fence + "\n")
