"""`genref lint` from outside: what it prints in each format, its exit status, and that it starts quickly."""

from __future__ import annotations

import json

import pytest
from support import cpu_time

MCORE = "policy.generation.mcore_generation_config"
WRONG = "policy:\n  device: gpu\n  generation:\n    temperature: 0\n    top_p: 0.9\n"


@pytest.fixture
def wrong(tmp_path):
    """A file with an error on line 2 and a warning on line 5."""
    (tmp_path / "r.yaml").write_text(WRONG)


def test_text(genref, wrong):
    """A line a finding and a line that counts; errors mean status 2."""
    result = genref("lint", "r.yaml")
    assert (result.status, result.err) == (2, "")
    assert result.out.splitlines() == [
        "r.yaml:2: error: policy.device: 'gpu' is not one of auto, cpu, cuda; did you mean cpu?",
        (
            "r.yaml:5: warning: policy.generation.top_p: 0.9 has no effect: temperature: 0 takes the best token; "
            "delete one of the two"
        ),
        "1 file: 1 error, 1 warning",
    ]


def test_warnings_alone_are_status_0(genref, tmp_path):
    (tmp_path / "r.yaml").write_text(WRONG.replace("gpu", "cpu"))
    result = genref("lint", "r.yaml")
    assert (result.status, result.out.splitlines()[-1]) == (0, "1 file: 0 errors, 1 warning")


def test_json(genref, wrong):
    """One list of objects with the fields of a finding."""
    result = genref("lint", "--format", "json", "r.yaml")
    first, second = json.loads(result.out)
    assert result.status == 2
    assert first == {
        "path": "r.yaml",
        "line": 2,
        "column": None,
        "severity": "error",
        "key": "policy.device",
        "message": "'gpu' is not one of auto, cpu, cuda; did you mean cpu?",
        "code": "value",
    }
    assert (second["severity"], second["code"], second["line"]) == ("warning", "no-effect", 5)


def test_json_of_a_clean_file_is_an_empty_list(genref, tmp_path):
    (tmp_path / "r.yaml").write_text("policy: {device: cpu}")
    result = genref("lint", "--format", "json", "r.yaml")
    assert (result.status, json.loads(result.out)) == (0, [])


def test_github(genref, tmp_path):
    """Workflow commands, with commas, colons and percent signs of names and messages escaped as GitHub asks."""
    (tmp_path / "a,b:c%.yaml").write_text("policy:\n  model_name: 3\n  device: '50%'\n  x: [\n")
    assert genref("lint", "--format", "github", "a,b:c%.yaml").out == (
        "::error file=a%2Cb%3Ac%25.yaml,line=5,col=1::not valid YAML: did not find expected node content\n"
    )
    (tmp_path / "a,b:c%.yaml").write_text("policy:\n  device: '50%'\n")
    assert genref("lint", "--format", "github", "a,b:c%.yaml").out == (
        "::error file=a%2Cb%3Ac%25.yaml,line=2::policy.device: '50%25' is not one of auto, cpu, cuda\n"
    )


def test_github_of_a_clean_file_is_silent(genref, tmp_path):
    (tmp_path / "r.yaml").write_text("policy: {device: cpu}")
    result = genref("lint", "--format", "github", "r.yaml")
    assert (result.status, result.out) == (0, "")


def test_fix(genref, tmp_path):
    """What was rewritten is said, what is left is linted, and a second run has nothing to do."""
    (tmp_path / "r.yaml").write_text(
        "policy:\n  generation:\n    mcore_generation_config:\n      enable_cuda_graph: false\n      max_tokens: 8\n"
    )
    result = genref("lint", "--fix", "r.yaml")
    assert (result.status, result.out.splitlines()) == (
        0,
        [
            f"r.yaml:4: fixed: {MCORE}.enable_cuda_graph: enable_cuda_graph: false is now cuda_graph_impl: none",
            "1 file: 0 errors, 0 warnings, 1 fixed",
        ],
    )
    assert genref("lint", "--fix", "r.yaml").out == "1 file: 0 errors, 0 warnings\n"


def test_a_fix_that_fails(genref, tmp_path):
    """Status 2, the reason, the findings that stay, and the file as it was."""
    text = "policy:\n  generation:\n    mcore_generation_config:\n      enable_cuda_graph: maybe\n"
    (tmp_path / "r.yaml").write_text(text)
    result = genref("lint", "--fix", "r.yaml")
    assert result.status == 2
    assert [line.split(": ")[:2] for line in result.out.splitlines()[:-1]] == [["r.yaml:4", "error"]] * 2
    assert (tmp_path / "r.yaml").read_text() == text


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("none.yaml", None, "none.yaml: error: no such file"),
        ("tab.yaml", b"policy:\n\tdevice: cpu\n", "tab.yaml:2:1: error: not valid YAML: a tab in the margin; indent with spaces"),
        ("latin.yaml", b"a: caf\xe9\n", "latin.yaml:1:7: error: not UTF-8 text"),
        ("loop.yaml", b"a: &a [*a]\n", "loop.yaml:1:8: error: the anchor &a contains itself"),
        ("deep.yaml", b"{a: " * 2_500_000, "deep.yaml:1:257: error: nested too deeply to be a recipe"),
        ("self.yaml", b"defaults: self.yaml\n", "self.yaml:1: error: defaults: these files inherit from each other: self.yaml -> self.yaml"),
        ("folder", b"", "folder: error: cannot be read (Is a directory)"),
    ],
)  # fmt: skip
def test_bad_files(genref, tmp_path, name, data, expected):
    """One line that names the file, status 2, no traceback, with and without --fix."""
    if name == "folder":
        (tmp_path / name).mkdir()
    elif data is not None:
        (tmp_path / name).write_bytes(data)
    for options in ([], ["--fix"]):
        result = genref("lint", *options, name)
        assert (result.status, result.err) == (2, "")
        assert result.out.splitlines() == [expected, "1 file: 1 error, 0 warnings"]


@pytest.mark.parametrize("arguments", [["lint"], ["lint", "--format", "xml", "r.yaml"], ["lint", "--fixx", "r.yaml"]])
def test_wrong_usage(genref, arguments):
    result = genref(*arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)


def test_it_starts_within_six_tenths_of_a_second(start_genref, tmp_path):
    """Of computing: imports, the recipe and its report."""
    (tmp_path / "r.yaml").write_text("policy: {device: cpu}")

    def lint() -> None:
        out, err = start_genref("lint", "r.yaml").communicate(timeout=60)
        assert (out, err) == ("1 file: 0 errors, 0 warnings\n", "")

    assert min(cpu_time.of_children(lint) for _ in range(3)) < 0.6
