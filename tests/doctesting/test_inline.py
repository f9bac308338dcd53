"""Prose is closed: plain inline code is asked about, and a number in plain text is refused, at its own line."""

from collections.abc import Iterable

import pytest

from reference_impl.doctesting.inline import prose_problems


def refuse_all(code: str) -> str:
    return "refused"


def accept_all(code: str) -> None:
    return None


def numbers(text: str) -> list[str]:
    """What is refused as a number, in the order of the page."""
    return [message.partition(":")[0] for _, message in prose_problems(text, accept_all)]


def codes(text: str) -> list[tuple[int, str]]:
    """The inline code that is asked about, with its line."""
    return [
        (line, message.removeprefix("`").removesuffix("`: refused"))
        for line, message in prose_problems(text, refuse_all)
    ]


@pytest.mark.parametrize(
    "number", ["64", "3.12", "0.5%", "2.0", "-5", "1e-4", "10_000", "16,384", "0.19.2", "5ms", "10GB", "3x"]
)
def test_a_number_in_a_sentence_is_refused(number: str) -> None:
    assert numbers(f"A block has {number} tokens.") == [number]
    assert numbers(f"So it is ({number}).") == [number]


@pytest.mark.parametrize(
    "word",
    [
        "SmolLM2",
        "SmolLM2-135M",
        "H200",
        "D1",
        "float32",
        "int8",
        "UTF-8",
        "1-based",
        "0-based",
        "1st",
        "2nd",
        "v0.19",
        "Apache-2.0",
        "L4",
    ],
)
def test_digits_that_belong_to_a_name_are_no_number(word: str) -> None:
    assert numbers(f"It runs {word} as well.") == []


def test_a_number_that_a_hyphen_joins_to_a_word_counts() -> None:
    assert numbers("Blocks of 64-token size, 3-5 of them.") == ["64", "3", "5"]


@pytest.mark.parametrize(
    "text",
    [
        "Shown by {value}`64 <size>` alone.",
        "Inline code `64` is not plain text.",
        "[a link](page.md#section-3)",
        "<https://example.org/3>",
        "A formula $x = 3$.",
        "$$\nx = 3\n$$",
        "```python\nx = 3\n```",
        "    indented 3",
        "<!-- 3 -->",
        "<div id='x3'>\n3\n</div>",
        "% a comment 3",
        "(anchor-3)=\n# Heading",
        "3. an item of a list",
        "{#anchor-3}\nA paragraph.",
        "---\nnumber: 3\n---\n\nText.",
        "```{graphviz}\n:alt: 3 boxes\ndigraph { a -> b3; 3 }\n```",
        "```{key-table} policy\nkey 3\n```",
        "![](picture-3.png)",
        "A note[^3].\n\n[^3]: Text.",
    ],
)
def test_what_is_no_plain_text_is_left_alone(text: str) -> None:
    assert numbers(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "[link to 3](page.md)",
        "# Heading 3",
        "| a |\n|---|\n| 3 |",
        "- item 3",
        "> quote 3",
        "Term\n: definition 3",
        "![picture of 3](x.png)",
        "*emphasis 3*",
        "A note[^a].\n\n[^a]: Text 3.",
        "```{note} Begins with 3\n```",
        "```{note}\nHolds 3.\n```",
        ":::{tip}\nHolds 3.\n:::",
        "```{admonition} Title 3\n```",
        "````{note}\n```{tip}\nHolds 3.\n```\n````",
        ":field: value 3",
    ],
)
def test_prose_in_every_form_of_text_is_read(text: str) -> None:
    assert numbers(text) == ["3"]


def test_plain_code_is_asked_about_and_the_reason_is_passed_on() -> None:
    def no_keys(code: str) -> str | None:
        return "write {key}`max_tokens`" if code == "max_tokens" else None

    found = list(prose_problems("# Page\n\nThe key `max_tokens` and `None`.", no_keys))
    assert found == [(3, "`max_tokens`: write {key}`max_tokens`")]


def test_roles_are_no_plain_code_and_the_code_of_a_link_is() -> None:
    assert codes("{key}`a` and [`b`](#c) and `` `d` ``") == [(1, "b"), (1, "`d`")]


def test_each_problem_has_the_line_on_which_it_is_written() -> None:
    """Also after code and roles that are broken over lines, and inside directives with options."""
    page = """# Heading `one`

First line and `two
words`, {key}`three
words` then `four`
and\\
`five`.

| `six` |
|---|
| `seven` |

```{note}
:class: wide

Inside `eight`
and `nine`.
```

- item
  `ten`
"""
    assert codes(page) == [
        (1, "one"),
        (3, "two words"),
        (5, "four"),
        (7, "five"),
        (9, "six"),
        (11, "seven"),
        (16, "eight"),
        (17, "nine"),
        (21, "ten"),
    ]


def test_numbers_too_have_their_own_line() -> None:
    found: Iterable[tuple[int, str]] = prose_problems("One\n2 three\nfour 5.", accept_all)
    assert [line for line, _ in found] == [2, 3]
