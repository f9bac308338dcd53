"""Seven changes that a maintainer may make without thinking of the pages: each alone fails, with the page and the line."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = ["conf.py", "conftest.py", "constraints.txt", "docs", "examples", "Makefile", "pyproject.toml", "README.md"]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project without its tests, to be changed."""
    leave = shutil.ignore_patterns("_build", "__pycache__", "build")
    for name in [*NEEDED, "reference_impl"]:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=leave)
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def change(file: Path, old: str, new: str) -> int:
    """Replace what stands once in a file; return the line it stands on."""
    text = file.read_text("utf-8")
    assert text.count(old) == 1, f"{file}: {old!r} stands there {text.count(old)} times"
    file.write_text(text.replace(old, new), "utf-8")
    return text[: text.index(old)].count("\n") + 1


def run(folder: Path, *command: str, path: str = "") -> tuple[int, str]:
    """Run a module in the copy, whose package comes before the installed one; return status and output."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{folder}:{path}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def run_page(folder: Path, page: str, *options: str, path: str = "") -> tuple[int, str]:
    return run(folder, "pytest", page, "-q", "-p", "no:cacheprovider", *options, path=path)


def build(folder: Path) -> tuple[int, str]:
    return run(folder, "sphinx", "-W", "-n", "--keep-going", "-q", "-b", "dummy", "-c", ".", "docs", "site")


def test_an_evaluator_that_is_not_called(copy: Path) -> None:
    """Every block passes then, and the count finds that none was executed."""
    change(
        copy / "reference_impl/doctesting/sybil_parser.py", "return evaluate(example.parsed)", "return None  # evaluate"
    )
    status, said = run_page(copy, "docs/design/platforms.md", "--docs-report")
    assert status == 1
    assert "failed" not in said
    assert re.search(r"^docs/design/platforms\.md:6: shown, not executed", said, re.MULTILINE)
    assert said.rstrip().splitlines()[-1] == "docs: 4 blocks shown, 0 executed, 0 skipped"


def test_a_language_that_nobody_runs(copy: Path) -> None:
    """Sphinx shows it, and Sybil's own parser passes over it."""
    page = copy / "docs/design/platforms.md"
    line = page.read_text("utf-8").count("\n") + 2
    page.write_text(f"{page.read_text('utf-8')}\n```py\n1 / 0\n```\n", "utf-8")
    status, said = run_page(copy, "docs/design/platforms.md")
    assert status == 1
    assert f"platforms.md, line {line}, column 1" in said
    assert "no evaluator for 'py': did you mean 'python'?" in said


def test_a_key_that_is_renamed(copy: Path) -> None:
    change(copy / "reference_impl/config/schema.py", "    max_requests: int | None", "    most_requests: int | None")
    status, said = build(copy)
    assert status != 0
    line = (copy / "docs/design/generation.md").read_text("utf-8").split("{key}`max_requests`")[0].count("\n") + 1
    assert re.search(rf"docs/design/generation\.md:{line}: WARNING: .*max_requests", said)


def test_a_default_that_is_changed(copy: Path) -> None:
    change(
        copy / "reference_impl/config/schema.py",
        "block_size_tokens: int = Field(\n        256",
        "block_size_tokens: int = Field(\n        128",
    )
    status, said = run_page(copy, "docs/reference/configuration.md")
    assert status == 1
    assert re.search(r"configuration\.md, line \d+, column 1", said)
    assert "-      block_size_tokens: 256" in said


def test_a_link_that_is_broken(copy: Path) -> None:
    """Sphinx gives the line on which the paragraph begins."""
    page = copy / "docs/design/staleness.md"
    change(page, "[](../guides/observe-staleness.md)", "[](../guides/observe.md)")
    line = page.read_text("utf-8").split("[](../guides/observe.md)")[0].rpartition("\n\n")[0].count("\n") + 3
    status, said = build(copy)
    assert status != 0
    assert re.search(rf"docs/design/staleness\.md:{line}: WARNING: .*observe\.md", said)


def test_a_key_that_no_page_documents(copy: Path) -> None:
    change(
        copy / "reference_impl/config/schema.py",
        "    max_requests: int | None",
        '    new_key: int = Field(1, description="Something new.")\n    max_requests: int | None',
    )
    status, said = build(copy)
    assert status != 0
    assert re.search(r"WARNING: .*mcore_generation_config\.new_key", said)


def test_a_default_that_is_changed_upstream(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a copy of the installed package that comes before it on the path."""
    site = tmp_path_factory.mktemp("site-packages")
    upstream = importlib.metadata.distribution("megatron-core")
    for file in upstream.files or ():
        if file.suffix == ".py" or "dist-info" in file.parts[0]:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(upstream.locate_file(file), site / file)
    assert run_page(copy, "docs/reference/upstream.md", path=str(site))[0] == 0, "the copy itself is right"
    change(site / "megatron/core/inference/config.py", "buffer_size_gb: int = 20", "buffer_size_gb: int = 40")
    status, said = run_page(copy, "docs/reference/upstream.md", path=str(site))
    assert status == 1
    assert "upstream.md, line 7, column 1" in said
    assert "InferenceConfig.buffer_size_gb: pinned int = 20, found int = 40" in said
