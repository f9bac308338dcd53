"""A file that a page includes is checked as its content would be, or by a test that is run."""

from pathlib import Path

import pytest
from support.pages import run
from sybil.example import SybilFailure

HALF = """
import pytest

def test_right():
    assert True

def test_skipped():
    pytest.skip("no")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with files to include."""
    for name, text in {
        "right.yaml": "steps: 1\n",
        "wrong.yaml": "steps: 0\n",
        "elided.yml": "# a remark\nsteps: ...\n",
        "right.json": "{}",
        "wrong.json": "{a}",
        "right.toml": "a = 1",
        "wrong.toml": "a",
        "script.py": "print(1)\n",
        "test_script.py": "def test_right():\n    pass\n\ndef test_wrong():\n    assert False\n",
        "test_half.py": HALF,
        "test_empty.py": "",
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("right.yaml", ""),
        ("/right.json", ""),
        ("right.toml", ":lines: 1"),
        ("script.py", ":tested-by: test_script.py::test_right"),
    ],
)
def test_right_files_pass(folder: Path, name: str, option: str) -> None:
    """Data is checked as a fence; of a script, the named test passes."""
    run(folder, f"```{{literalinclude}} {name}\n{option}\n```\n")


@pytest.mark.parametrize(
    ("name", "option", "message"),
    [
        ("no.py", "", "no such file"),
        ("wrong.yaml", "", "wrong.yaml: bad YAML: steps: 0 is not positive"),
        ("elided.yml", "", "elided.yml: line 2: '...' is no value"),
        ("wrong.json", "", "wrong.json: bad JSON"),
        ("wrong.toml", "", "wrong.toml: bad TOML"),
        ("script.py", "", "name the test that runs script.py"),
        ("script.py", ":diff: right.yaml", ":diff: shows a second file"),
        ("script.py", ":tested-by: test_script.py::test_wrong", "did not pass"),
        ("script.py", ":tested-by: test_half.py", "1 passed and 2 skipped"),
        ("script.py", ":tested-by: test_empty.py", "did not pass"),
    ],
)
def test_wrong_files_fail(folder: Path, name: str, option: str, message: str) -> None:
    """A file that is gone or wrong, a script that nobody runs, and a test that does not wholly pass."""
    with pytest.raises(SybilFailure) as failure:
        run(folder, f"```{{literalinclude}} {name}\n{option}\n```\n")
    assert message in str(failure.value)


def test_a_test_that_does_not_end_fails(folder: Path) -> None:
    """The time-out is that of commands."""
    (folder / "test_slow.py").write_text("import time\n\ndef test_slow():\n    time.sleep(60)\n", "utf-8")
    with pytest.raises(SybilFailure, match="still running after 2 s"):
        run(folder, "```{literalinclude} script.py\n:tested-by: test_slow.py\n```\n", timeout_seconds=2)
