"""Mutation of a small site: what a check can see dies, what none can see is named, and the exit status says which."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reference_impl.doctesting.case import Checks
from reference_impl.doctesting.mutation.affected import affected
from reference_impl.doctesting.mutation.excuses import read_excuses
from reference_impl.doctesting.pages import page_examples

ROOT = Path(__file__).parents[2]

PAGE = """\
# Sizes

```python
pair = [1, 2]
print(len(pair))
```

```text
2
```

A pair has {value}`2 <len(pair)>` parts and a triple 3, see [](other.md#end).
"""
OTHER = """\
# Other

## End

Back to [](page.md).
"""
CHECKS = """\
from pathlib import Path

from reference_impl.doctesting.case import Checks

ROOT = Path(__file__).parent
CHECKS = Checks(root=ROOT, pages=ROOT / "docs")
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A project with two pages; its checks are in `checks.py`."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text(
        "extensions = ['myst_parser', 'reference_impl.doctesting.sphinx_roles']\n"
        "myst_enable_extensions = ['colon_fence']\nmyst_heading_anchors = 3\n"
    )
    (docs / "index.md").write_text("# Start\n\n```{toctree}\npage\nother\n```\n")
    (docs / "page.md").write_text(PAGE)
    (docs / "other.md").write_text(OTHER)
    (tmp_path / "checks.py").write_text(CHECKS)
    return tmp_path


def mutate(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reference_impl.doctesting.mutation", "--checks", "checks:CHECKS", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False, timeout=120)


def counts(output: str, row: str) -> list[float]:
    """Return the numbers of one row: killed, survived and equivalent, or mutants and seconds each."""
    line = next(line for line in output.splitlines() if line.split()[:1] == [row])
    return [float(number) for number in line.split()[1:]]


def test_a_bound_number_dies_and_an_unbound_one_is_named(site: Path) -> None:
    done = mutate(site, "--all")
    assert done.returncode == 1, done.stderr
    survivors = [line for line in done.stdout.splitlines() if line.startswith("survived:")]
    # 3 is bound to nothing, and so is the first element of a list of which only the length is shown.
    assert survivors == [
        "survived: docs/page.md:4: code: '1' -> '2'",
        "survived: docs/page.md:4: code: '2' -> '3'",
        "survived: docs/page.md:12: number: '3' -> '4'",
    ]
    assert counts(done.stdout, "number") == [1, 1, 0]
    # A link's path, its anchor, and the way back.
    assert counts(done.stdout, "link") == [3, 0, 0]
    assert counts(done.stdout, "output") == [3, 0, 0]
    assert re.search(r"^mutants: (\d+), (\d+) killed, 0 equivalent, 3 survived$", done.stdout, re.MULTILINE)


def test_nothing_is_written_into_the_project(site: Path) -> None:
    (site / "docs" / "page.md").write_text(PAGE + "\n```python\nopen('made.txt', 'w').close()\n```\n")
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    mutate(site, "--all")
    after = {path: path.read_bytes() for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert after == before


def test_what_one_mutant_writes_is_gone_for_the_next(site: Path) -> None:
    """Were the file of the unchanged page to stay, the page could read it under the right name after a wrong one is written."""
    page = "# A\n\n```python\nopen('made', 'w').write('5')\nprint(open('made').read())\n```\n\n```text\n5\n```\n"
    (site / "docs" / "page.md").write_text(page)
    done = mutate(site, "--all", "--page", "docs/page.md")
    assert "survived: docs/page.md:4: code: 'made' -> 'mdae'" not in done.stdout
    assert "survived: docs/page.md:5: code: 'made' -> 'mdae'" not in done.stdout


def test_an_equivalent_mutant_needs_a_reason_and_then_is_none_of_the_survivors(site: Path) -> None:
    (site / "docs" / "equivalent-mutants.toml").write_text(
        '[[equivalent]]\npage = "docs/page.md"\nkind = "code"\npattern = "^pair ="\nreason = "only its length is shown"\n'
        '[[equivalent]]\nkind = "number"\nbefore = "3"\nafter = "4"\nreason = "by definition"\n'
    )
    done = mutate(site, "--all")
    assert done.returncode == 0, done.stdout
    assert counts(done.stdout, "code")[1:] == [0, 2]
    assert "only its length is shown" in done.stdout


def test_an_entry_that_excuses_nothing_is_reported_by_a_full_run_only(site: Path) -> None:
    (site / "docs" / "equivalent-mutants.toml").write_text(
        '[[equivalent]]\npage = "docs/page.md"\nreason = "all of it"\n[[equivalent]]\nbefore = "77"\nreason = "gone"\n'
    )
    full = mutate(site, "--all")
    assert full.returncode == 1
    assert "excuses nothing: before = '77'" in full.stdout
    assert mutate(site, "--page", "docs/page.md").returncode == 0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('[[equivalent]]\nbefore = "3"\n', "entry 1: no reason"),
        ('[[equivalent]]\nreason = "all"\n', "entry 1: it covers everything"),
        ('[[equivalent]]\nreason = "x"\nafer = "3"\n', "entry 1: unknown key 'afer'"),
        ('[[equivalent]]\nreason = "x"\nkind = "word"\n', "entry 1: kind 'word' is none of value, key"),
        ('[[equivalent]]\nreason = "x"\npattern = "("\n', "entry 1: pattern: "),
        ("[[same]]\n", "only tables [[equivalent]] are known, not same"),
        ("[[\n", "equivalent-mutants.toml: "),
    ],
)
def test_a_bad_list_of_reasons_is_refused(tmp_path: Path, entry: str, message: str) -> None:
    (tmp_path / "equivalent-mutants.toml").write_text(entry)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_excuses(tmp_path / "equivalent-mutants.toml")


def test_a_bad_list_of_reasons_ends_the_command_with_one_line(site: Path) -> None:
    (site / "docs" / "equivalent-mutants.toml").write_text('[[equivalent]]\nbefore = "3"\n')
    done = mutate(site)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mutation: {site / 'docs' / 'equivalent-mutants.toml'}: entry 1: no reason\n"


def test_a_mutant_that_hangs_is_ended_and_counts_as_seen(site: Path) -> None:
    """Without the False the loop never ends; what the page has started ends with it."""
    page = "# A\n\n```python\nwhile False:\n    pass\nprint(1)\n```\n\n```text\n1\n```\n"
    (site / "docs" / "page.md").write_text(page)
    done = mutate(site, "--all", "--page", "docs/page.md", "--grace", "3")
    assert done.returncode == 0, done.stdout
    # On a busy machine others may be late as well.
    assert counts(done.stdout, "time-out")[0] >= 1


def test_a_mutant_whose_process_dies_counts_as_seen(site: Path) -> None:
    page = "# A\n\n```python\nimport os\n\na = b = len(os.sep)\nif a < b:\n    os.abort()\nprint(1)\n```\n\n```text\n1\n```\n"
    (site / "docs" / "page.md").write_text(page)
    done = mutate(site, "--all", "--page", "docs/page.md")
    assert done.returncode == 0, done.stdout
    assert counts(done.stdout, "died")[0] == 1


def test_a_page_that_fails_as_it_is_proves_nothing(site: Path) -> None:
    """Every mutant of it would seem to be seen."""
    (site / "docs" / "page.md").write_text(PAGE.replace("\n2\n", "\n3\n"))
    done = mutate(site, "--all")
    assert done.returncode == 2
    assert "not tried: docs/page.md, which fails unchanged: line 3" in done.stdout


def test_a_site_that_warns_as_it_is_proves_nothing(site: Path) -> None:
    (site / "docs" / "other.md").write_text("# Other\n\n## End\n\n[](nowhere.md)\n")
    done = mutate(site, "--all")
    assert done.returncode == 2
    assert "not tried: docs/index.md and 2 more, which fail unchanged: docs/other.md:5: WARNING:" in done.stdout


def test_a_renamed_heading_is_seen_on_the_page_that_links_to_it(site: Path) -> None:
    (site / "docs" / "other.md").write_text("# Other\n\n## End `of`\n\nText.\n")
    (site / "docs" / "page.md").write_text(PAGE.replace("#end", "#end-of"))
    done = mutate(site, "--all", "--page", "docs/other.md")
    assert done.returncode == 0, done.stdout
    assert counts(done.stdout, "name") == [1, 0, 0]


TRICKY = """\
# Tricky

```{code-block} yaml
:caption: parent.yaml

size: 5
```

```python
import threading
import time

print(open("parent.yaml").read().strip())
```

```{code-block} text
:class: wide

size: 5
```

```python
stop, ended = threading.Event(), []
thread = threading.Thread(target=lambda: ended.append(stop.wait()))
thread.start()
print(1 + 1)
```

```text
2
```

```python
stop.set()
thread.join(10)
print(ended)
```

```text
[True]
```
"""


def test_examples_find_what_those_above_have_left_behind(site: Path) -> None:
    """Files, outputs that were compared, and threads, which a copy of a process would lack."""
    (site / "docs" / "page.md").write_text(f"---\nyaml-schema: any.json\n---\n\n{TRICKY}")
    (site / "any.json").write_text("{}")
    (site / "checks.py").write_text(CHECKS.replace('docs")', 'docs", scratch=ROOT)'))
    done = mutate(site, "--all", "--page", "docs/page.md")
    survivors = [line for line in done.stdout.splitlines() if line.startswith("survived:")]
    # How a block looks is no example's business, and ten seconds are as good as eleven.
    assert survivors == [
        "survived: docs/page.md:21: option: ':class: wide\\n' -> nothing",
        "survived: docs/page.md:39: code: '10' -> '11'",
    ], done.stdout
    assert counts(done.stdout, "option") == [1, 1, 0]
    assert not (site / "parent.yaml").exists()


def test_data_that_needs_the_code_above_it_is_not_blamed(site: Path) -> None:
    """It cannot be read before that code has run, whatever is changed."""
    (site / "docs" / "page.md").write_text(
        "# A\n\nThere are 3.\n\n```python\nopen('made', 'w').close()\n```\n\n```yaml\nneeds: made\n```\n"
    )
    (site / "checks.py").write_text(
        CHECKS.replace('docs")', 'docs", validate_yaml=validate)').replace(
            "ROOT =",
            "def validate(text, folder):\n"
            "    if not Path(text.split()[-1]).exists():\n        raise ValueError('no file')\n    return True\n\n\n"
            "ROOT =",
        )
    )
    done = mutate(site, "--all", "--page", "docs/page.md")
    assert "survived: docs/page.md:3: number: '3' -> '4'" in done.stdout
    assert counts(done.stdout, "value") == [1, 0, 0]


def test_a_broken_link_of_one_mutant_is_not_held_against_another(site: Path) -> None:
    """A heading that changes has all pages looked at, and they have to be as they were. The slower page comes first."""
    (site / "docs" / "page.md").write_text(
        "# A\n\n```python\nimport time\n\ntime.sleep(0.5)\n```\n\n[](other.md#end)\n"
    )
    (site / "docs" / "other.md").write_text("# Other\n\n## End\n\n## Not linked `of`\n")
    done = mutate(site, "--all", "--workers", "1")
    assert "survived: docs/other.md:5: name: 'of' -> 'fo'" in done.stdout
    assert counts(done.stdout, "link") == [2, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--page", "docs/pages.md"], "--page docs/pages.md: no such page; known are docs/index.md"),
        (["--checks", "checks:ROOT"], "--checks checks:ROOT: "),
        (["--checks", "checks:NONE"], "NONE"),
        (["--preload", "no_such_module"], "no_such_module"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(site: Path, options: list[str], message: str) -> None:
    done = mutate(site, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


CHANGES = """\
```python
a = 1
print(a)
```

```text
1
```

{value}`1 <a>`

```console
$ tool run
done
```

```python
b = 2
```
"""


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # The examples of the page: its prose, the code, its output, the value, the command, the last code.
        ("a = 1", "a = 2", (1, 6)),
        ("\n1\n", "\n2\n", (1, 3)),
        ("`1 <a>`", "`2 <a>`", (3, 4)),
        ("tool run", "tool rnu", (4, 6)),
        ("done", "dnoe", (4, 5)),
        ("b = 2", "b = 3", (5, 6)),
        # Without its output the code above it is to be run again.
        ("```text\n1\n```\n", "", (1, 2)),
        # Another text of the prose is no example's business.
        ("\n\n{value}", "\n\nText {value}", None),
    ],
)
def test_only_what_a_change_can_reach_is_run(before: str, after: str, expected: tuple[int, int] | None) -> None:
    checks = Checks(root=ROOT, pages=ROOT)
    page = CHANGES.replace(before, after, 1)
    assert page != CHANGES
    pages = [list(page_examples(ROOT / "page.md", text, checks)) for text in (CHANGES, page)]
    assert affected(*pages) == expected
