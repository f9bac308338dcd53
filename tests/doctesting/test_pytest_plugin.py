"""A whole session: pages collected, run and counted, in one process and in several."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from pathlib import Path

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.sybil_parser import collector

pytest_plugins = ["reference_impl.doctesting.pytest_plugin"]
ROOT = Path(__file__).parent
pytest_collect_file = collector(Checks(root=ROOT, pages=ROOT / "docs", beside=[ROOT / "README.md"]))
"""

INDEX = """# Title

```python
print(1)
```

```text
1
```

```{toctree}
deep/er/page
```
"""

PAGE = """# Page

```pycon
>>> 2
2
```
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two pages and a README."""
    (tmp_path / "docs" / "deep" / "er").mkdir(parents=True)
    for name, text in {
        "conftest.py": CONFTEST,
        "README.md": "# Readme\n\n```toml\na = 1\n```\n",
        "docs/conf.py": 'extensions = ["myst_parser"]\nexclude_patterns = []\n',
        "docs/index.md": INDEX,
        "docs/deep/er/page.md": PAGE,
    }.items():
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def session(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run pytest in a folder and return its exit status and the lines it printed."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, (done.stderr + done.stdout).strip().split("\n")


@pytest.mark.parametrize("processes", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "two"])
def test_all_that_is_shown_was_executed(project: Path, processes: tuple[str, ...]) -> None:
    """The last line says so, below a table with a row a page; without the option there is neither."""
    status, lines = session(project, "docs", "README.md", "--docs-report", *processes)
    assert status == 0, lines
    assert lines[-1] == "docs: 4 blocks shown, 4 executed, 0 skipped"
    rows = {tuple(line.split()[:3]) for line in lines}
    assert {("docs/index.md", "2", "2"), ("docs/deep/er/page.md", "1", "1"), ("README.md", "1", "1")} <= rows
    if not processes:
        status, lines = session(project, "docs")
        assert (status, [line for line in lines if line.startswith("docs:")]) == (0, [])


def test_a_block_that_the_lexer_misses_fails(project: Path) -> None:
    """Nothing fails when a fence is not found; what Sphinx shows tells."""
    lossy = "\nfrom reference_impl.doctesting import pages\nfences = pages.fences\n"
    lossy += "pages.fences = lambda text: (fence for fence in fences(text) if fence.kind != 'pycon')\n"
    (project / "conftest.py").write_text(CONFTEST + lossy, "utf-8")
    status, lines = session(project, "docs", "--docs-report")
    assert status == 1
    assert any(" passed" in line and "failed" not in line for line in lines)
    assert "docs/deep/er/page.md:3: shown, not executed: '>>> 2'" in lines
    assert lines[-1] == "docs: 3 blocks shown, 2 executed, 0 skipped"


def test_a_block_that_no_evaluator_saw_fails(project: Path) -> None:
    """A test that passes without evaluating anything has executed nothing."""
    idle = "\nfrom reference_impl.doctesting import sybil_parser\nsybil_parser.evaluate = lambda case: None\n"
    (project / "conftest.py").write_text(CONFTEST + idle, "utf-8")
    status, lines = session(project, "docs", "--docs-report")
    assert status == 1
    assert any(" passed" in line and "failed" not in line for line in lines)
    assert lines[-1] == "docs: 3 blocks shown, 0 executed, 0 skipped"


def test_a_skip_a_warning_and_a_page_nobody_sees_fail(project: Path) -> None:
    """Each is named."""
    skipping = "\nimport pytest\n\ndef pytest_collection_modifyitems(items):\n"
    skipping += "    [item.add_marker('skip') for item in items if 'line:7' in item.nodeid]\n"
    (project / "conftest.py").write_text(CONFTEST + skipping, "utf-8")
    (project / "docs" / "conf.py").write_text('extensions = ["myst_parser"]\nexclude_patterns = ["deep"]\n', "utf-8")
    status, lines = session(project, "docs", "--docs-report")
    assert status == 1
    assert "1 skipped" in lines
    assert "docs/index.md:7: shown, not executed: '1'" in lines
    assert "docs/deep/er/page.md:3: executed, but no reader sees it" in lines
    assert any(line.startswith("warning: ") and "deep/er/page" in line for line in lines)
    assert lines[-1] == "docs: 2 blocks shown, 2 executed, 1 skipped"


def test_only_the_selected_page_is_counted_and_all_of_it(project: Path) -> None:
    """To choose one page is fine; to leave out a block of it is not."""
    status, lines = session(project, "docs/index.md", "--docs-report")
    assert (status, lines[-1]) == (0, "docs: 2 blocks shown, 2 executed, 0 skipped")
    status, lines = session(project, "docs/index.md", "--docs-report", "--deselect", "docs/index.md::line:7,column:1")
    assert (status, lines[-1]) == (1, "docs: 2 blocks shown, 1 executed, 0 skipped")


def test_a_failing_page_fails_once(project: Path) -> None:
    """A fence that nobody claims is a failed test and an unproved block."""
    (project / "docs" / "index.md").write_text(INDEX.replace("python", "py"), "utf-8")
    status, lines = session(project, "docs/index.md", "--docs-report")
    assert status == 1
    assert any("no evaluator for 'py'" in line for line in lines)
    assert "docs/index.md:3: shown, not executed: 'print(1)'" in lines


def test_a_project_without_a_collector_is_told(project: Path) -> None:
    """The report needs to know where the site is."""
    (project / "conftest.py").write_text('pytest_plugins = ["reference_impl.doctesting.pytest_plugin"]\n', "utf-8")
    status, lines = session(project, "docs", "--docs-report")
    assert status == 4
    assert any("pytest_collect_file = collector" in line for line in lines)


DOCUMENTED = '''"""A module."""


def twice(x: int) -> int:
    """Return twice a number.

    ```python
    from package import twice

    print(twice(2))
    ```

    ```text
    4
    ```
    """
    return 2 * x
'''


def test_the_docstrings_that_a_page_shows_are_run_and_counted(project: Path) -> None:
    """Asking for the pages is enough, and a docstring that lies fails at its line."""
    (project / "conftest.py").write_text(CONFTEST.replace('ROOT / "README.md"', 'ROOT / "package.py"'), "utf-8")
    (project / "package.py").write_text(DOCUMENTED, "utf-8")
    (project / "docs" / "conf.py").write_text(
        'extensions = ["myst_parser", "autodoc2"]\n'
        'autodoc2_packages = [{"path": "../package.py", "auto_mode": False}]\n'
        'autodoc2_render_plugin = "myst"\n'
        'autodoc2_docstring_parser_regexes = [(".*", "myst")]\n',
        "utf-8",
    )
    page = project / "docs" / "deep" / "er" / "page.md"
    page.write_text(f"{PAGE}\n```{{autodoc2-object}} package.twice\n```\n", "utf-8")
    status, lines = session(project, "docs", "--docs-report", "-p", "no:asyncio")
    assert status == 0, lines
    assert lines[-1] == "docs: 5 blocks shown, 5 executed, 0 skipped"
    assert ("package.py", "2", "2") in {tuple(line.split()[:3]) for line in lines}
    (project / "package.py").write_text(DOCUMENTED.replace("    4\n", "    5\n"), "utf-8")
    status, lines = session(project, "docs", "--docs-report", "-p", "no:asyncio")
    assert status == 1
    assert lines[-1] == "docs: 5 blocks shown, 3 executed, 0 skipped"
    assert any("package.py, line 7, column" in line for line in lines)
