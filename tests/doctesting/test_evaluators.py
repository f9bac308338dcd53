"""Each kind of fence, right and wrong: real pages, read and run by Sybil."""

import textwrap
import time
from pathlib import Path

import pytest
from support.pages import run
from sybil.example import SybilFailure

from reference_impl.doctesting.evaluators import EVALUATORS
from reference_impl.doctesting.fences import PROSE

RIGHT = {
    "code": "```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n",
    "output": "```python\nprint('a ')\nprint('b')\n```\n\n```text\na\nb\n```\n",
    "from the root": "```python\nfrom pathlib import Path\nassert Path('page.md').exists()\n```\n",
    "a command": "```console\n$ python -c 'print(1)'\n1\n```\n",
    "two commands": "```console\n$ python -c 'print(1)'\n1\n$ python -c 'print(2)'\n2\n```\n",
    "a command over lines": "```console\n$ python -c \\\n    'print(1)'\n1\n```\n",
    "a silent command": "```console\n$ python -c 'pass'\n```\n",
    "stdout before stderr": "```console\n$ python -c 'import sys; sys.stderr.write(\"e\\n\"); print(1)'\n1\ne\n```\n",
    "a promised status": "```console\n$ python -c 'print(1); raise SystemExit(3)'\n1\n[exit 3]\n```\n",
    "a diagram": "```{graphviz}\n:alt: a leads to b\n\ndigraph { a -> b }\n```\n",
    "a picture": "```{image} page.md\n:alt: a page\n```\n",
    "a session": "```pycon\n>>> 1 + 1\n2\n```\n",
    "yaml": "```yaml\nsteps: 1\n```\n",
    "json": '```json\n{"a": 1}\n```\n',
    "toml": "```toml\na = 1\n```\n",
    "an included file": "```{literalinclude} data.json\n```\n",
    "a file of the site": "```{literalinclude} /data.json\n```\n",
    "a value": "```python\nx = 5\n```\n\nIt is {value}`5 <x>`.\n",
    "a formula": "```{math}\nx\n```\n",
    "raw HTML": "```{raw} html\n<hr>\n```\n",
    "in a note": ":::{note}\n```python\nprint(1)\n```\n\n```text\n1\n```\n:::\n",
    "no newline at the end": "```python\nx = 1\n```",
}


@pytest.mark.parametrize("page", RIGHT.values(), ids=RIGHT)
def test_right_pages_pass(tmp_path: Path, page: str) -> None:
    """What is true on a page is accepted."""
    (tmp_path / "data.json").write_text("{}", "utf-8")
    run(tmp_path, page)


WRONG = {
    "an unknown language": ("```fortran\nx\n```\n", "no evaluator for 'fortran'"),
    "a near miss": ("```pyton\nx = 1\n```\n", "did you mean 'python'"),
    "a listing in HTML": ("<pre>x = 1</pre>\n", "shown and not run"),
    "a listing in raw HTML": ("```{raw} html\n<pre>x</pre>\n```\n", "shown and not run"),
    "an unknown directive": ("```{eval-rst}\nx\n```\n", "no evaluator for '{eval-rst}'"),
    "a project's directive that is not named": ("```{a-table}\n```\n", "no evaluator for '{a-table}'"),
    "a box with a word": (":::python\nx = 1\n:::\n", "no evaluator for ':::python'"),
    "a value in a caption": (
        "```{code-block} python\n:caption: the {value}`5 <x>`\n\nx = 5\n```\n",
        "a value in a title or an option",
    ),
    "other output": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "-2\n+1"),
    "more output": ("```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n```\n", "+2"),
    "less output": ("```python\nprint(1)\n```\n\n```text\n1\n2\n```\n", "-2"),
    "an ellipsis": ("```python\nprint(1)\nprint(2)\n```\n\n```text\n1\n...\n```\n", "-...\n+2"),
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
    "a broken diagram": ("```{graphviz}\n:alt: x\n\ndigraph { a -> }\n```\n", "dot refuses it"),
    "a diagram without words": ("```{graphviz}\ndigraph { a }\n```\n", ":alt:"),
    "a picture without words": ("```{image} fence.png\n```\n", ":alt:"),
    "a picture that is gone": ("```{image} no.png\n:alt: x\n```\n", "no such file"),
    "a diagram that is gone": ("```{graphviz} no.dot\n:alt: x\n```\n", "no such file"),
}


@pytest.mark.parametrize(("page", "message"), WRONG.values(), ids=WRONG)
def test_wrong_pages_fail(tmp_path: Path, page: str, message: str) -> None:
    """What is not true, and what nobody checks, fails and says why."""
    with pytest.raises(SybilFailure) as failure:
        run(tmp_path, page)
    assert message in str(failure.value)


def test_a_project_names_the_directives_that_sphinx_checks(tmp_path: Path) -> None:
    """What makes its own content is checked when the site is built."""
    run(tmp_path, "```{a-table}\n```\n", directives={"a-table"})


def test_a_project_checks_the_prose_of_each_page_once(tmp_path: Path) -> None:
    """Its own function is given the page, and what it finds fails the page with the lines."""
    seen = []

    def no_foo(text: str) -> list[tuple[int, str]]:
        seen.append(text)
        return [(n, "foo is no word") for n, line in enumerate(text.split("\n"), 1) if "foo" in line]

    run(tmp_path, "```python\nx = 1\n```\n\ntext\n", check_prose=no_foo)
    assert len(seen) == 1
    with pytest.raises(SybilFailure, match=r"line 1, column 1 .*\nline 1: foo is no word\nline 3: foo is no word"):
        run(tmp_path, "a foo\n\nfoo\n", check_prose=no_foo)


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


def test_every_kind_has_a_right_and_a_wrong_page() -> None:
    """No evaluator is added without showing that it can pass; those that check something show that they can fail."""
    pages = "".join(RIGHT.values())
    for kind in set(EVALUATORS) - {"{toctree}", "{autodoc2-object}", "{autodoc2-summary}", PROSE}:
        assert f"```{kind}" in pages or f"{kind}`" in pages, kind
