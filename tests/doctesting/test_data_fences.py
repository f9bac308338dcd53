"""Data on a page is parsed strictly, and validated by the project or by the schema that the page names."""

import json
from pathlib import Path

import pytest
from support.pages import run
from sybil.example import SybilFailure

SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}, "additionalProperties": False}
NAMED = "---\nyaml-schema: schema.json\njson-schema: schema.json\n---\n\n"

RIGHT = {
    "data that the project knows": "```yaml\nsteps: 1\n```\n",
    "a file for the code below": (
        "```{code-block} yaml\n:caption: out/a/steps.yaml\n\nsteps: 3\n```\n\n"
        "```python\nassert open('out/a/steps.yaml').read() == 'steps: 3\\n'\n```\n"
    ),
    "what is refused, as the page says": (
        "```{code-block} yaml\n:caption: out/no.yaml\n:class: refused\n\nsteps: 0\n```\n\n"
        "```python\nassert open('out/no.yaml').read() == 'steps: 0\\n'\n```\n"
    ),
    "data for the page's schema": NAMED + "```yaml\nsize: 3\n```\n",
    "one thing named twice": "```yaml\nsteps: &a 1\nmore: *a\n```\n",
    "json": '```json\n{"size": "x"}\n```\n',
    "json for the page's schema": NAMED + '```json\n{"size": 1}\n```\n',
    "toml": "```toml\n[a]\nb = 1\n```\n",
}


@pytest.mark.parametrize("page", RIGHT.values(), ids=RIGHT)
def test_right_data_passes(tmp_path: Path, page: str) -> None:
    """It parses and is what somebody says it should be."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    run(tmp_path, page, scratch=tmp_path / "out")


WRONG = {
    "broken yaml": ("```yaml\na: [1\n```\n", "bad YAML"),
    "yaml that the project refuses": ("```yaml\nsteps: 0\n```\n", "steps: 0 is not positive"),
    "yaml that nobody knows": ("```yaml\nsize: 3\n```\n", "name its JSON schema in the front matter of the page"),
    "yaml that breaks the schema": (NAMED + "```yaml\nsize: x\n```\n", "$.size: 'x' is not of type 'integer'"),
    "yaml with an unknown key": (NAMED + "```yaml\nsise: 1\n```\n", "'sise' was unexpected"),
    "a key given twice": ("```yaml\nsteps: 1\nmore:\n  a: 1\n  a: 2\n```\n", "line 5: the key 'a' is given twice"),
    "two documents": ("```yaml\nsteps: 1\n---\nsteps: 2\n```\n", "bad YAML"),
    "a tab": ("```yaml\nsteps:\n\ta: 1\n```\n", "bad YAML"),
    "deep nesting": (f"```yaml\n{'[' * 1000}\n```\n", "bad YAML"),
    "a schema that is gone": ("---\nyaml-schema: no.json\n---\n\n```yaml\na: 1\n```\n", "yaml-schema: no.json"),
    "a schema that is none": ("---\nyaml-schema: bad.json\n---\n\n```yaml\na: 1\n```\n", "yaml-schema: bad.json"),
    "a schema from elsewhere": ("---\nyaml-schema: far.json\n---\n\n```yaml\na: 1\n```\n", "yaml-schema: far.json"),
    "a caption outside the folder for it": (
        "```{code-block} yaml\n:caption: out/../conf.yaml\n\nsteps: 1\n```\n",
        "the caption 'out/../conf.yaml' is to be a file in",
    ),
    "what is not refused": (
        "```{code-block} yaml\n:class: refused\n\nsteps: 1\n```\n",
        "nothing is wrong with this, and the page says that it is refused",
    ),
    "broken json": ("```json\n{a}\n```\n", "bad JSON"),
    "a name given twice": ('```json\n{"a": 1, "a": 2}\n```\n', "given twice: 'a'"),
    "a number that is none": ('```json\n{"a": NaN}\n```\n', "NaN is not JSON"),
    "json that breaks the schema": (NAMED + '```json\n{"size": "x"}\n```\n', "$.size: 'x' is not of type"),
    "broken toml": ("```toml\na\n```\n", "bad TOML"),
    "a toml key given twice": ("```toml\na = 1\na = 2\n```\n", "bad TOML"),
}


@pytest.mark.parametrize(("page", "message"), WRONG.values(), ids=WRONG)
def test_wrong_data_fails(tmp_path: Path, page: str, message: str) -> None:
    """The failure says what is wrong, and where the parser knows the line, on which line of the page."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    (tmp_path / "bad.json").write_text('{"type": "nothing"}', "utf-8")
    (tmp_path / "far.json").write_text('{"$ref": "https://example.invalid/schema.json"}', "utf-8")
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, page, scratch=tmp_path / "out")
    assert message in str(failure.value)


def test_broken_front_matter_fails_the_page(tmp_path: Path) -> None:
    """A schema named there would go unnoticed."""
    with pytest.raises(ValueError, match="bad front matter"):
        run(tmp_path, "---\nyaml-schema: [\n---\n\n```yaml\nsteps: 1\n```\n")
