"""A value in prose is what the code of its page gives at that place."""

from pathlib import Path

import pytest
from support.pages import run
from sybil.example import SybilFailure

from reference_impl.doctesting.fences import fences
from reference_impl.doctesting.values import split_value

CODE = "```python\nx = 5\n```\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "It is {value}`5 <x>` and {value}`10 <2 * x>`.",
        "{value}`0.50 <f'{x / 10:.2f}'>`",
        "{value}`True <x < 6>`",
        "{value}`5 b <f'{x} b'>`",
        "text\nand {value}`5\n<x>`",
        "| a |\n|---|\n| {value}`5 <x>` |",
        ":::{note}\n{value}`5 <x>`\n:::",
    ],
)
def test_right_values_pass(tmp_path: Path, text: str) -> None:
    """Wherever they stand, and formatted as the expression formats them."""
    run(tmp_path, CODE + text + "\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{value}`6 <x>`", "the page says '6', and x is '5'"),
        ("{value}`5.0 <x>`", "the page says '5.0', and x is '5'"),
        ("{value}`5 <y>`", "y raises NameError"),
        ("{value}`5 <x +>`", "x + raises SyntaxError"),
        ("{value}`None <print(x)>`", "prints something"),
        ("{value}`5 <2 + 3>`", "2 + 3 is bound to nothing"),
        ("{value}`5`", "is no value"),
        ("{value}`<x>`", "is no value"),
        ("a\nb\n{value}`6 <x>`", "line 7, column 1 "),
        ("{value}`5 <x>` {value}`6 <x>`", "line 5, "),
        ("| a |\n|---|\n| {value}`5 <x>` |\n| {value}`6 <x>` |", "line 8, "),
        ("- a\n  - b {value}`6 <x>`", "line 6, "),
        (":::{admonition} T {value}`6 <x>`\n{value}`5 <x>`\n:::", "line 5, "),
        ("[{value}`6 <x>`](page.md)", "line 5, "),
    ],
)
def test_wrong_values_fail(tmp_path: Path, text: str, message: str) -> None:
    """Another value, an error, and what is no value: each with its line."""
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, CODE + text + "\n")
    assert message in str(failure.value)


def test_a_value_is_taken_at_its_place(tmp_path: Path) -> None:
    """After the code above it and before the code below."""
    run(tmp_path, CODE + "{value}`5 <x>`\n\n```python\nx = 6\n```\n\n{value}`6 <x>`\n")


def test_a_value_between_code_and_output_parts_neither(tmp_path: Path) -> None:
    """The words between a block and what it prints may hold one."""
    run(tmp_path, "```python\nx = 5\nprint(x)\n```\n\nprints {value}`5 <x>`:\n\n```text\n5\n```\n")


def test_what_is_shown_as_code_is_no_value() -> None:
    """A role between backticks of its own, or behind a backslash, is text."""
    assert list(fences("`` {value}`5 <x>` `` and \\{value}`5 <x>` and {other}`5 <x>`\n")) == []


def test_the_content_is_parted_at_the_last_bracket() -> None:
    """The expression may compare."""
    assert split_value("5 <a < b>") == ("5", "a < b")
    assert split_value(" 1,024 tokens <f'{n:,} tokens'> ") == ("1,024 tokens", "f'{n:,} tokens'")


def test_a_project_gives_names_to_all_values(tmp_path: Path) -> None:
    """The page's own come before them."""
    names = {"version": "1.2", "x": 4}
    run(tmp_path, "{value}`1.2 <version>`\n\n{value}`4 <x>`\n\n" + CODE + "{value}`5 <x>`\n", names=names)
