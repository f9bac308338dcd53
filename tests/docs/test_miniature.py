"""The small project of the guide on executable docs works by itself: in a clean folder, without torch or Megatron."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "executable-docs"
UV = Path(sys.executable).with_name("uv")

# Making the environment copies or links some fifty packages.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds this package with its extra `doctesting`, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pins = ROOT / "constraints.txt"
    install = [UV, "pip", "install", "--quiet", "--python", python, "--constraint", pins, "--build-constraint", pins]
    done = subprocess.run([*install, f"{ROOT}[doctesting]"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project, so that nothing of this repository is above it."""
    return shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("build", "__pycache__"))


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python, "-m", "pytest", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_torch_and_megatron_are_not_there(python: Path) -> None:
    script = "import importlib.util as u; print([u.find_spec(name) for name in ('torch', 'megatron', 'transformers')])"
    assert subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout == (
        "[None, None, None]\n"
    )


def test_its_pages_pass_and_every_block_is_counted(python: Path, project: Path) -> None:
    """One block of YAML, one of Python with its output, a session, a command and an included file."""
    done = run(python, project, "--docs-report")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "docs: 6 blocks shown, 6 executed, 0 skipped"


def test_the_broken_page_fails_line_by_line(python: Path, project: Path) -> None:
    shutil.copy(project / "broken.md", project / "docs")
    done = run(python, project, "docs", "--docs-report")
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == [
        f"docs/broken.md::line:{at}" for at in ("9,column:1", "13,column:1", "17,column:1", "21,column:16")
    ]
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "docs: 9 blocks shown, 6 executed, 0 skipped"


def test_a_page_that_nobody_links_to_fails_the_report(python: Path, project: Path) -> None:
    """All its blocks pass, and Sphinx warns."""
    (project / "docs" / "lost.md").write_text("# Lost\n\n```python\nx = 1\n```\n", "utf-8")
    done = run(python, project, "docs", "--docs-report")
    assert done.returncode == 1
    assert "document isn't included in any toctree" in done.stdout


def test_the_site_builds(python: Path, project: Path) -> None:
    command = [python, "-m", "sphinx", "-W", "-n", "-q", "docs", "site"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
