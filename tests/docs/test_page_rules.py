"""Each rule that a page keeps to is a warning by name where it is broken, and silent where it is kept."""

import page_rules
import pytest
from support.small_site import small_site

END = "Next: [](other.md).\n"


def warnings_of(folder, page):
    """What Sphinx says of a page, beside one that it may lead to and a glossary."""
    (folder / "reference").mkdir()
    (folder / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    words = {"other": "Back to [](index.md).", "reference/glossary": "```{glossary}\nGRPO\n    An algorithm.\n```"}
    return small_site(folder, ["acronyms", "page_rules"], index=page, **words).warnings


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("## B\n\nText.\n\n## B\n\n", "heading 'B' is used twice on this page"),
        ("```{image} a.svg\n```\n\n", "picture a.svg has no :alt:"),
        ("The XYZ is new.\n\n", "term not in glossary: 'XYZ'"),
        ("```python\na = 1\n" + "b" * 89 + "\n```\n\n", "89 letters of code are more than a line holds (88): bbb"),
    ],
)
def test_what_is_wrong_is_said_by_name(tmp_path, page, problem):
    [said] = warnings_of(tmp_path, page + END)
    assert said.startswith("index.md") and problem in said


@pytest.mark.parametrize("end", ["The end.", "See [](#page).", "Of `code` and the GRPO."])
def test_a_page_leads_on(tmp_path, end):
    [said] = warnings_of(tmp_path, f"{END}\n{end}\n")
    assert "the page ends without a link to where to go next" in said


def test_a_sound_page_is_silent(tmp_path):
    page = "## B\n\n```{image} a.svg\n:alt: Nothing.\n```\n\n```python\n" + "b" * 88 + "\n```\n\nA CPU, and D3.\n\n"
    assert warnings_of(tmp_path, page + END) == []


def test_names_without_words_are_found(monkeypatch):
    source = (
        "class A:\n    def open(self): ...\n    def _own(self): ...\n    def close(self):\n        'Words.'\n"
        "def f(): ...\ndef g(): ...\n"
    )
    monkeypatch.setattr(page_rules, "modules", lambda: [("m", page_rules.ast.parse(source))])
    assert list(page_rules.undocumented({"m.A", "m.f"})) == ["m.A", "m.A.open", "m.f"]
