"""Each kind of fence, right and wrong: real pages, read and run by Sybil."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from sybil import Document
from sybil.example import SybilFailure

from reference_impl.doctesting.evaluators import EVALUATORS, Checks
from reference_impl.doctesting.sybil_parser import FenceParser

ROOT = Path(__file__).parents[2]


def no_zero(data: Any) -> None:
    """Refuse one thing, as a schema would."""
    if isinstance(data, dict) and data.get("steps") == 0:
        raise ValueError("steps: 0 is not positive")


def run(folder: Path, page: str, **checks: Any) -> dict[str, Any]:
    """Run all fences of a page in `folder` and return the names that they leave behind."""
    path = folder / "page.md"
    path.write_text(page, "utf-8")
    parser = FenceParser(Checks(root=folder, pages=folder, validate_yaml=no_zero, **checks))
    document = Document.parse(str(path), parser)
    for example in document:
        example.evaluate()
    return document.namespace


RIGHT = {
    "code": "```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n",
    "output": "```python\nprint('a ')\nprint('b')\n```\n\n```text\na\nb\n```\n",
    "a number that varies": "```python\nprint('took -1.5e-3 s')\n```\n\n```text\ntook <number> s\n```\n",
    "a path that varies": "```python\nprint('wrote /tmp/a/b.json')\n```\n\n```text\nwrote <path>\n```\n",
    "a token that is printed": "```python\nprint('x <path> <number> 1')\n```\n\n```text\nx <path> <number> <number>\n```\n",
    "from the root": "```python\nfrom pathlib import Path\nassert Path('page.md').exists()\n```\n",
    "a command": "```console\n$ python -c 'print(1)'\n1\n```\n",
    "two commands": "```console\n$ python -c 'print(1)'\n1\n$ python -c 'print(2)'\n2\n```\n",
    "a command over lines": "```console\n$ python -c \\\n    'print(1)'\n1\n```\n",
    "a silent command": "```console\n$ python -c 'pass'\n```\n",
    "stdout before stderr": "```console\n$ python -c 'import sys; sys.stderr.write(\"e\\n\"); print(1)'\n1\ne\n```\n",
    "a promised status": "```console\n$ python -c 'print(1); raise SystemExit(3)'\n1\n[exit 3]\n```\n",
    "yaml for the code below": "```yaml\na: 3\n```\n\n```python\nassert (config, config_text) == ({'a': 3}, 'a: 3\\n')\n```\n",
    "json": '```json\n{"a": 1}\n```\n',
    "toml": "```toml\na = 1\n```\n",
    "a diagram": "```{graphviz}\n:alt: a leads to b\n\ndigraph { a -> b }\n```\n",
    "a picture": "```{image} page.md\n:alt: a page\n```\n",
    "an included file": "```{literalinclude} page.md\n```\n",
    "a file of the site": "```{literalinclude} /page.md\n```\n",
    "a formula": "```{math}\nx\n```\n",
    "raw HTML": "```{raw} html\n<hr>\n```\n",
    "a table of metrics": "```{metrics-table}\n```\n",
    "a table of another system's": "```{alias-table} verl\n```\n",
    "in a note": ":::{note}\n```python\nprint(1)\n```\n\n```text\n1\n```\n:::\n",
    "no newline at the end": "```python\nx = 1\n```",
}


@pytest.mark.parametrize("page", RIGHT.values(), ids=RIGHT)
def test_right_pages_pass(tmp_path: Path, page: str) -> None:
    """What is true on a page is accepted."""
    run(tmp_path, page)


WRONG = {
    "an unknown language": ("```fortran\nx\n```\n", "no evaluator for 'fortran'"),
    "a misspelt language": ("```py\nx = 1\n```\n", "no evaluator for 'py'"),
    "a near miss": ("```pyton\nx = 1\n```\n", "did you mean 'python'"),
    "a space after the language": ("```python \nx = 1\n```\n", "no evaluator for 'python '"),
    "words after the language": ("```python title=a\nx = 1\n```\n", "no evaluator for 'python title=a'"),
    "a session": ("```pycon\n>>> 1\n1\n```\n", "no evaluator for 'pycon'"),
    "an unknown directive": ("```{eval-rst}\nx\n```\n", "no evaluator for '{eval-rst}'"),
    "an included page": ("```{include} other.md\n```\n", "no evaluator for '{include}'"),
    "indented code": ("text\n\n    x = 1\n", "use a fence"),
    "no language": ("```\nx = 1\n```\n", "names its language"),
    "a fence in a comment": ("<!--\n```python\nx = 1\n```\n-->\n", "neither shown nor run"),
    "a listing in HTML": ("<pre>x = 1</pre>\n", "shown and not run"),
    "a listing in raw HTML": ("```{raw} html\n<pre>x</pre>\n```\n", "shown and not run"),
    "other output": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "-2\n+1"),
    "more output": ("```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n```\n", "+2"),
    "less output": ("```python\nprint(1)\n```\n\n```text\n1\n2\n```\n", "-2"),
    "an ellipsis": ("```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n...\n```\n", "-...\n+2"),
    "a word for a number": ("```python\nprint('x')\n```\n\n```text\n<number>\n```\n", "+x"),
    "two words for a path": ("```python\nprint('a b')\n```\n\n```text\n<path>\n```\n", "+a b"),
    "output that is not shown": ("```python\nprint(1)\n```\n", "no text fence follows"),
    "output shown too late": (
        "```python\nprint(1)\n```\n\n```json\n1\n```\n\n```text\n1\n```\n",
        "no text fence follows",
    ),
    "output of nothing": ("```python\nx = 1\n```\n\n```text\n1\n```\n", "printed nothing"),
    "text alone": ("```text\n1\n```\n", "there is none"),
    "text after text": ("```python\nprint(1)\n```\n\n```text\n1\n```\n\n```text\n1\n```\n", "there is none"),
    "a skip": ("```python\nimport pytest\npytest.skip('no')\n```\n", "stopped by Skipped"),
    "a skip of unittest": ("```python\nimport unittest\nraise unittest.SkipTest\n```\n", "stopped by SkipTest"),
    "an exit": ("```python\nraise SystemExit(0)\n```\n", "stopped by SystemExit"),
    "other output of a command": ("```console\n$ python -c 'print(1)'\n2\n```\n", "-2\n+1"),
    "a second command gone wrong": ("```console\n$ python -c ''\n$ python -c 'print(1)'\n```\n", "+1"),
    "a status": ("```console\n$ python -c 'raise SystemExit(3)'\n```\n", "exit status 3"),
    "another status": ("```console\n$ python -c 'raise SystemExit(3)'\n[exit 4]\n```\n", "exit status 3"),
    "a promised failure that is none": ("```console\n$ python -c ''\n[exit 1]\n```\n", "exit status 0"),
    "a command not on the list": ("```console\n$ rm -r x\n```\n", "'rm' is not among"),
    "a pipe": ("```console\n$ python -V | cat\n```\n", "needs a shell"),
    "a redirection": ("```console\n$ python -V > x\n```\n", "needs a shell"),
    "a variable": ("```console\n$ python $HOME\n```\n", "needs a shell"),
    "an open quotation": ("```console\n$ python 'a\n```\n", "No closing quotation"),
    "an empty command": ("```console\n$ \n```\n", "an empty command"),
    "no command": ("```console\npython -V\n```\n", "begins with a command"),
    "broken yaml": ("```yaml\na: [1\n```\n", "bad YAML"),
    "elided yaml": ("```yaml\na: 1\n...\n```\n", "ends a YAML document"),
    "invalid yaml": ("```yaml\nsteps: 0\n```\n", "steps: 0 is not positive"),
    "broken json": ("```json\n{a}\n```\n", "bad JSON"),
    "broken toml": ("```toml\na\n```\n", "bad TOML"),
    "a broken diagram": ("```{graphviz}\n:alt: x\n\ndigraph { a -> }\n```\n", "dot refuses it"),
    "a diagram without words": ("```{graphviz}\ndigraph { a }\n```\n", ":alt:"),
    "a picture without words": ("```{image} fence.png\n```\n", ":alt:"),
    "a picture that is gone": ("```{image} no.png\n:alt: x\n```\n", "no such file"),
    "a diagram that is gone": ("```{graphviz} no.dot\n:alt: x\n```\n", "no such file"),
    "a file that is gone": ("```{literalinclude} no.py\n```\n", "no such file"),
}


@pytest.mark.parametrize(("page", "message"), WRONG.values(), ids=WRONG)
def test_wrong_pages_fail(tmp_path: Path, page: str, message: str) -> None:
    """What is not true, and what nobody checks, fails and says why."""
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, page)
    assert message in str(failure.value)


def test_a_failure_names_the_page_and_the_line(tmp_path: Path) -> None:
    """So that an editor can go there."""
    with pytest.raises(SybilFailure, match=r"page\.md, line 3, column 1"):
        run(tmp_path, "# Title\n\n```py\nx\n```\n")


def test_an_exception_points_at_the_line_of_the_page(tmp_path: Path) -> None:
    """The traceback of a fence shows the page's own line."""
    with pytest.raises(ZeroDivisionError) as failure:
        run(tmp_path, "# Title\n\n```{code-block} python\n:caption: c\n\nx = 1\nx / 0\n```\n")
    last = failure.traceback[-1]
    assert (Path(str(last.path)).name, last.lineno + 1) == ("page.md", 7)


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """A time-out fails and leaves no process behind."""
    (tmp_path / "parent.py").write_text(
        textwrap.dedent("""
            import subprocess, sys, time
            late = "import pathlib, time; time.sleep(2); pathlib.Path('late').touch()"
            subprocess.Popen([sys.executable, "-c", late])
            print("begun", flush=True)
            time.sleep(60)
        """),
        "utf-8",
    )
    with pytest.raises(SybilFailure, match=r"still running after 1 s.*\nbegun"):
        run(tmp_path, "```console\n$ python parent.py\n```\n", timeout_seconds=1)
    time.sleep(2.5)
    assert not (tmp_path / "late").exists()


def test_an_allowed_command_must_be_beside_the_interpreter(tmp_path: Path) -> None:
    """A program of the same name from elsewhere would show another version's output."""
    with pytest.raises(SybilFailure, match="'ls' is not installed beside"):
        run(tmp_path, "```console\n$ ls\n```\n", commands={"ls"})


def test_a_page_does_not_see_the_names_of_another(tmp_path: Path) -> None:
    """Each page stands on its own."""
    run(tmp_path, "```python\nx = 1\n```\n")
    with pytest.raises(NameError):
        run(tmp_path, "```python\nx\n```\n")


def test_the_same_page_passes_and_fails_under_pytest(tmp_path: Path) -> None:
    """The whole way: pytest collects a page through Sybil, a test a fence, and fails for one that nobody claims."""
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent("""
            from pathlib import Path
            from sybil import Sybil
            from reference_impl.doctesting.evaluators import Checks
            from reference_impl.doctesting.sybil_parser import FenceParser

            root = Path(__file__).parent
            pytest_collect_file = Sybil([FenceParser(Checks(root=root, pages=root))], patterns=["*.md"]).pytest()
        """),
        "utf-8",
    )
    (tmp_path / "page.md").write_text("```python\nprint(1)\n```\n\n```text\n1\n```\n\n```py\n1 / 0\n```\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "2 passed" in done.stdout or "1 failed, 2 passed" in done.stdout, done.stdout
    assert "no evaluator for 'py'" in done.stdout


def test_every_kind_has_a_right_and_a_wrong_page() -> None:
    """No evaluator is added without showing that it can pass; those that check something show that they can fail."""
    pages = "".join(RIGHT.values())
    for kind in set(EVALUATORS) - {"{toctree}", "{autodoc2-object}", "{autodoc2-summary}"}:
        assert f"```{kind}" in pages, kind
