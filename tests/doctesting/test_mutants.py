"""The mutants of a page are those that a reader finds by hand, each a small change at one place."""

from collections import Counter

import pytest

from reference_impl.doctesting.mutation.edits import different, misspelt, other_number
from reference_impl.doctesting.mutation.mutants import KINDS, Mutant, mutants, sample

PAGE = '''\
---
title: 7 pages
---

# Buffers of 2

A block has 256 tokens, see `max_tokens`, {key}`size` and
{value}`5 <len(prompt) + 1>`; {py:func}`~a.load` reads $x^2$ of [3 kinds](other.md#anchor). <!-- 9 -->

| key | default |
|---|---|
| `top_k` | 40 |

1. one

```yaml
model: tiny
sizes: [1, true]
```

```python
"""A remark of 3 words."""
for n in range(2):
    print("total", n < 1, end=" ")
```

```text
total True <0.1..0.9>
```

```console
$ tool run --dry
done
```

```{literalinclude} code.py
:lines: 1-2
```

:::{note}
:class: wide

At most 8.
:::
'''

EXPECTED = """\
5 number: '2' -> '3'
7 number: '256' -> '257'
7 name: 'max_tokens' -> 'max_toekns'
7 name: 'size' -> 'szie'
8 number: '5' -> '6'
8 code: '+' -> '-'
8 code: '1' -> '2'
8 link: '~a.load' -> '~a.laod'
8 number: '3' -> '4'
8 link: 'other.md' -> 'otehr.md'
8 link: 'anchor' -> 'anhcor'
12 name: 'top_k' -> 'tpo_k'
12 number: '40' -> '41'
17 key: 'model' -> 'moedl'
17 value: 'tiny' -> 'tniy'
18 key: 'sizes' -> 'siezs'
18 value: '1' -> '2'
18 value: 'true' -> 'false'
23 code: '2' -> '3'
24 code: 'total' -> 'toatl'
24 code: '<' -> '<='
24 code: '1' -> '2'
24 code: ', end=" "' -> nothing
28 output: 'total' -> 'toatl'
28 output: 'total True <0.1..0.9>\\n' -> nothing
28 output: 'total True <0.1..0.9>\\n' -> 'total True <0.1..0.9>\\ntotal True <0.1..0.9>\\n'
32 code: 'run' -> 'rnu'
32 code: ' --dry' -> nothing
32 code: '--dry' -> '--dyr'
33 output: 'done' -> 'dnoe'
33 output: 'done\\n' -> nothing
33 output: 'done\\n' -> 'done\\ndone\\n'
36 range: 'code.py' -> 'cdoe.py'
37 option: ':lines: 1-2\\n' -> nothing
37 range: '1-2' -> '2-2'
43 number: '8' -> '9'
"""


def shown(page: str) -> list[str]:
    return [str(mutant).removeprefix("p.md:").replace(": ", " ", 1) for mutant in mutants("p.md", page)]


def test_the_mutants_of_a_page_are_these_and_no_others() -> None:
    """Front matter, comments, formulas, docstrings, list numbers and placeholders say nothing that could be wrong."""
    assert sorted(shown(PAGE)) == sorted(EXPECTED.splitlines())


def test_a_mutant_differs_from_its_page_at_its_place_alone() -> None:
    for mutant in mutants("p.md", PAGE):
        changed = mutant.edit.apply(PAGE)
        assert changed != PAGE
        end = mutant.edit.start + len(mutant.edit.before)
        assert changed == PAGE[: mutant.edit.start] + mutant.edit.after + PAGE[end:]
        assert PAGE[: mutant.edit.start].count("\n") == mutant.line - 1


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("- ```python\n  a(b=1)\n  ```\n", ["2 code: '1' -> '2'", "2 code: 'b=1' -> nothing"]),
        ("> ```yaml\n> a: 5\n> ```\n", ["2 value: '5' -> '6'"]),
        ("```python\nf(\n    x,\n    y=ü,\n)\n```\n", ["3 code: ',\\n    y=ü' -> nothing"]),
        ("```python\nf'{n} words'\n```\n", ["2 code: 'words' -> 'wodrs'"]),
        ("```python\nassert a == b\n```\n", ["2 code: '==' -> '!='"]),
        (
            "```toml\n[tool]\nsize = 1.5\n```\n",
            ["2 key: 'tool' -> 'tolo'", "3 key: 'size' -> 'szie'", "3 value: '1.5' -> '1.6'"],
        ),
        ('```json\n{"on": null}\n```\n', ["2 key: '\"on\"' -> '\"no\"'", "2 value: 'null' -> '1'"]),
        (
            "```pycon\n>>> 1 + 1\n2\n```\n",
            [
                "2 code: '+' -> '-'",
                "2 code: '1' -> '2'",
                "2 code: '1' -> '2'",
                "3 output: '2' -> '3'",
                "3 output: '2\\n' -> '2\\n2\\n'",
                "3 output: '2\\n' -> nothing",
            ],
        ),
        ("```console\n$ tool \\\n    8\n```\n", ["3 code: '8' -> '9'"]),
        (
            "```{image} a.png\n:alt: A line\n```\n",
            ["1 link: 'a.png' -> 'a.pgn'", "2 option: ':alt: A line\\n' -> nothing"],
        ),
        ("```{code-block} toml\n:caption: a.toml\n\n```\n", ["2 option: ':caption: a.toml\\n' -> nothing"]),
        ("```{toctree}\nstart\n```\n", ["2 option: 'start\\n' -> nothing"]),
        ("```{math}\nx = 2\n```\n", []),
        ("```yaml\na: [\n```\n", []),
        ("```python\n1 +\n```\n", []),
        ("SmolLM2 has v1.2a and `` `x` `` <https://a.b/3>\n", []),
    ],
)
def test_places_are_found_wherever_they_stand(page: str, expected: list[str]) -> None:
    """In lists, quotes and over several lines; what cannot be read has no mutants, and fails by itself."""
    assert sorted(shown(page)) == sorted(expected)


def test_a_word_is_misspelt_by_two_letters_or_one_more() -> None:
    assert misspelt("policy.temperature") == "policy.tempearture"
    assert misspelt("aaa") == "aaaa"
    assert misspelt("a → 5") is None
    assert [other_number(number) for number in ("5", "99", "0.9", "1.0")] == ["6", "100", "0.8", "1.1"]
    assert [different(text) for text in ("true", "None", "-4", "a5", "ab 5")] == ["false", "1", "-5", None, "ba 5"]


def test_a_sample_holds_every_page_and_kind_before_a_second_of_any() -> None:
    found = [mutant for page in ("a.md", "b.md") for mutant in mutants(page, PAGE)]
    cells = Counter((mutant.page, mutant.kind) for mutant in found)
    assert {kind for _, kind in cells} == set(KINDS)
    once = sample(found, len(cells), seed=1)
    assert Counter((mutant.page, mutant.kind) for mutant in once) == dict.fromkeys(cells, 1)
    assert sample(found, 10**6, seed=1) == sorted(found)


def test_a_seed_fixes_the_sample_and_another_changes_it() -> None:
    found = mutants("a.md", PAGE)
    assert sample(found, 12, seed=1) == sample(reversed(found), 12, seed=1)
    assert sample(found, 12, seed=1) != sample(found, 12, seed=2)


def test_an_edit_of_another_text_is_refused() -> None:
    mutant: Mutant = mutants("a.md", PAGE)[0]
    with pytest.raises(AssertionError, match="the text has no"):
        mutant.edit.apply("# Another page\n")
