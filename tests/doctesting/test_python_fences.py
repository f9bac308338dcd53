"""Sessions are run statement by statement, and output belongs to the code above it."""

from pathlib import Path

import pytest
from support.pages import run
from sybil.example import SybilFailure

from reference_impl.doctesting.python_fences import Statement, statements

RIGHT = {
    "values": ">>> x = 2\n>>> x\n2\n>>> None\n",
    "a statement over lines": ">>> for n in range(2):\n...     print(n)\n...\n0\n1\n",
    "a blank line in the output": ">>> print('a\\n\\nb')\na\n\nb\n",
    "dots in the output": ">>> print('a\\n...')\na\n...\n",
    "a number within bounds": ">>> 0.5\n<0.4..0.6>\n",
    "an exception": ">>> 1 / 0\nTraceback (most recent call last):\n  anything\nZeroDivisionError: division by zero\n",
    "output before an exception": (
        ">>> def f():\n...     print(1)\n...     raise KeyError('a')\n>>> f()\n1\n"
        "Traceback (most recent call last):\nKeyError: 'a'\n"
    ),
}


@pytest.mark.parametrize("session", RIGHT.values(), ids=RIGHT)
def test_right_sessions_pass(tmp_path: Path, session: str) -> None:
    """What Python's prompt would print is accepted."""
    run(tmp_path, f"```pycon\n{session}```\n")


WRONG = {
    "another value": (">>> 1\n2\n", "line 2: --- the page"),
    "a value that is not shown": (">>> 1\n", "+1"),
    "output of nothing": (">>> x = 1\n1\n", "-1"),
    "an ellipsis": (">>> print('a\\nb')\na\n...\n", "-...\n+b"),
    "a second statement": (">>> 1\n1\n>>> 2\n3\n", "line 4: "),
    "another exception": (
        ">>> 1 / 0\nTraceback (most recent call last):\nZeroDivisionError: division by 0\n",
        "+ZeroDivisionError: division by zero",
    ),
    "a promised exception": (">>> x = 1\nTraceback (most recent call last):\nKeyError\n", "there is none"),
    "output that an exception hides": (
        ">>> def f():\n...     print(1)\n...     raise KeyError\n>>> f()\nTraceback (most recent call last):\nKeyError\n",
        "+1",
    ),
    "a skip": (">>> import pytest; pytest.skip('no')\n", "stopped by Skipped"),
    "no prompt": ("x = 1\n", "begins with a statement"),
}


@pytest.mark.parametrize(("session", "message"), WRONG.values(), ids=WRONG)
def test_wrong_sessions_fail(tmp_path: Path, session: str, message: str) -> None:
    """What Python's prompt would not print fails, and names the line of the statement."""
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, f"```pycon\n{session}```\n")
    assert message in str(failure.value)


def test_an_exception_that_is_not_shown_points_at_the_line_of_the_page(tmp_path: Path) -> None:
    """As with plain code."""
    with pytest.raises(ZeroDivisionError) as failure:
        run(tmp_path, "# Title\n\n```pycon\n>>> x = 1\n>>> x / 0\n```\n")
    assert failure.traceback[-1].lineno + 1 == 5


def test_a_session_shares_the_names_of_its_page(tmp_path: Path) -> None:
    """Code, sessions and values of a page read each other's names; the prompt's `_` is not among them."""
    page = "```python\nx = 1\n```\n\n```pycon\n>>> y = x + 1\n>>> y\n2\n```\n\nIt is {value}`2 <y>`.\n"
    names = run(tmp_path, page)
    assert names["y"] == 2
    assert "_" not in names["__builtins__"]


def test_statements_know_their_lines() -> None:
    """A prompt starts one, dots right below continue it, and the rest up to the next prompt is its output."""
    assert list(statements(">>> if 1:\n...     2\n...\n2\n...\n>>> 3\n3\n", 10)) == [
        Statement(code="if 1:\n    2\n", line=10, output="2\n..."),
        Statement(code="3", line=15, output="3"),
    ]


def test_output_is_not_proved_by_its_place_alone(tmp_path: Path) -> None:
    """A text block below code that failed was compared with nothing, and fails too."""
    from sybil import Document

    from reference_impl.doctesting.case import Checks
    from reference_impl.doctesting.sybil_parser import FenceParser

    (tmp_path / "page.md").write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n", "utf-8")
    document = Document.parse(str(tmp_path / "page.md"), FenceParser(Checks(root=tmp_path, pages=tmp_path)))
    _prose, code, text = document
    with pytest.raises(SybilFailure, match=r"-2\n\+1"):
        code.evaluate()
    with pytest.raises(SybilFailure, match="not printed: the python fence on line 1"):
        text.evaluate()
