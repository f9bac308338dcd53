"""What `--fix` promises: removed keys are rewritten, every other character stays, and a failing run writes nothing."""

import os
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from reference_impl.config.errors import ConfigError
from reference_impl.config.fixing import fix_files
from reference_impl.config.lint import lint

MCORE = "policy.generation.mcore_generation_config"

RECIPE_OF_2025 = """\
# GRPO on one node, winter 2025.
policy:
  model_name: "tiny"   # quotes and spaces stay
  max_total_sequence_length: 1_024
  generation:
      temperature: 1.0
      mcore_generation_config:   # the engine
        buffer_size_gb: 20
        # How much of the buffer is kept for requests that were admitted.
        buffer_guaranteed_fraction: 0.1  # a tenth

        enable_cuda_graph: true # faster decode
        num_cuda_graphs: 16
        unified_memory_level: 0
        paused_buffer_size_gb: 4.0
        cuda_graph_max_tokens: 64 # see the run of May
        max_tokens: 16384
        async_engine: false
      stop_strings:
      - 'a # b'
      -   "c"
data: {train: x,   list: [1,2]}   # not ours
"""
# Written by hand: five keys gone, one renamed, the comments of keys that went on lines of their own.
RECIPE_AFTERWARDS = """\
# GRPO on one node, winter 2025.
policy:
  model_name: "tiny"   # quotes and spaces stay
  max_total_sequence_length: 1_024
  generation:
      temperature: 1.0
      mcore_generation_config:   # the engine
        buffer_size_gb: 20
        # How much of the buffer is kept for requests that were admitted.
        # a tenth

        cuda_graph_impl: local # faster decode
        num_cuda_graphs: 16
        # see the run of May
        max_tokens: 16384
      stop_strings:
      - 'a # b'
      -   "c"
data: {train: x,   list: [1,2]}   # not ours
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty working directory and gives its relative path."""
    monkeypatch.chdir(tmp_path)

    def _write(name: str, text: str | bytes) -> Path:
        Path(name).write_bytes(text.encode() if isinstance(text, str) else text)
        return Path(name)

    return _write


def engine(*lines: str) -> str:
    return "policy:\n  generation:\n    mcore_generation_config:\n" + "".join(f"      {line}\n" for line in lines)


def refusal(*paths: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        fix_files(paths)
    return str(caught.value)


def test_a_recipe_of_2025(write):
    """The removed keys are rewritten, the file lints clean, and layout and comments are as they were."""
    path = write("r.yaml", RECIPE_OF_2025)
    done = fix_files([path])
    assert path.read_text() == RECIPE_AFTERWARDS
    assert lint([path]) == []
    assert [(finding.line, finding.message) for finding in done] == [
        (10, "deleted buffer_guaranteed_fraction: 0.1"),
        (12, "enable_cuda_graph: true is now cuda_graph_impl: local"),
        (14, "deleted unified_memory_level: 0"),
        (15, "deleted paused_buffer_size_gb: 4.0"),
        (16, "deleted cuda_graph_max_tokens: 64"),
        (18, "deleted async_engine: false"),
    ]


def test_another_parser_reads_the_same_afterwards(write):
    """ruamel.yaml, which shares no code with the rewriting, finds the old tree with those keys changed and all comments."""
    path = write("r.yaml", RECIPE_OF_2025)
    before = YAML().load(RECIPE_OF_2025)
    fix_files([path])
    section = before["policy"]["generation"]["mcore_generation_config"]
    for name in ("buffer_guaranteed_fraction", "enable_cuda_graph", "unified_memory_level", "paused_buffer_size_gb"):
        del section[name]
    del section["cuda_graph_max_tokens"], section["async_engine"]
    section["cuda_graph_impl"] = "local"
    assert YAML().load(path.read_text()) == before
    comments = [
        "# GRPO",
        "# quotes",
        "# the engine",
        "# How much",
        "# a tenth",
        "# faster",
        "# see the run",
        "# not ours",
    ]
    assert all(comment in path.read_text() for comment in comments)


FIXED = {
    "the only key": (engine("async_engine: true"), "policy:\n  generation:\n    mcore_generation_config: {}\n"),
    "the only key, with a comment": (
        engine("async_engine: true # why"),
        "policy:\n  generation:\n    mcore_generation_config: {}\n      # why\n",
    ),
    "false": (engine("enable_cuda_graph: false"), engine("cuda_graph_impl: none")),
    "renamed already": (engine("enable_cuda_graph: true", "cuda_graph_impl: local"), engine("cuda_graph_impl: local")),
    "first in braces": ("policy: {generation: {mcore_generation_config: {async_engine: true, max_tokens: 8}}}",
                        "policy: {generation: {mcore_generation_config: {max_tokens: 8}}}"),
    "last in braces": ("policy: {generation: {mcore_generation_config: {max_tokens: 8, async_engine: true}}}",
                       "policy: {generation: {mcore_generation_config: {max_tokens: 8}}}"),
    "alone in braces": ("policy: {generation: {mcore_generation_config: {async_engine: true}}}",
                        "policy: {generation: {mcore_generation_config: {}}}"),
    "braces over lines": ("policy: {generation: {mcore_generation_config: {\n  max_tokens: 8,\n  async_engine: true,\n}}}\n",
                          "policy: {generation: {mcore_generation_config: {\n  max_tokens: 8,\n}}}\n"),
    "no newline at the end": (engine("max_tokens: 8", "async_engine: true").rstrip("\n"), engine("max_tokens: 8")),
    "quoted": (engine('"async_engine": true', "max_tokens: 8"), engine("max_tokens: 8")),
    "Windows lines": (engine("async_engine: true # x", "max_tokens: 8").replace("\n", "\r\n"),
                      engine("# x", "max_tokens: 8").replace("\n", "\r\n")),
    "a byte order mark": ("\ufeff" + engine("async_engine: true", "max_tokens: 8"), "\ufeff" + engine("max_tokens: 8")),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), FIXED.values(), ids=FIXED.keys())
def test_layouts(write, before, after):
    """One removed key in each of the layouts that YAML allows; the expected text was written by hand."""
    path = write("r.yaml", before)
    assert len(fix_files([path])) == 1
    assert path.read_bytes().decode() == after
    assert [finding for finding in lint([path]) if finding.severity == "error"] == []


UNTOUCHED = {
    "nothing to do": engine("max_tokens:   8"),
    "another section's key of that name": "policy:\n  generation:\n    vllm_cfg:\n      async_engine: true\n",
    "an empty file": "",
}


@pytest.mark.parametrize("text", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_files_without_a_removed_key_are_not_written(write, text):
    """Not even with the same bytes: the time of change stays."""
    path = write("r.yaml", text)
    os.utime(path, (1, 1))
    assert fix_files([path]) == []
    assert (path.read_text(), path.stat().st_mtime) == (text, 1)


BY_HAND = {
    "another value is there": (
        engine("enable_cuda_graph: true", "cuda_graph_impl: none"),
        (
            "r.yaml:4: {key}enable_cuda_graph: not rewritten: cuda_graph_impl: none is there already and says otherwise; "
            "nothing is changed"
        ),
    ),
    "a reference": (
        engine("enable_cuda_graph: ${graphs}"),
        "r.yaml:4: {key}enable_cuda_graph: not rewritten: only true and false can be carried over; nothing is changed",
    ),
    "a number": (
        engine("enable_cuda_graph: 1"),
        "r.yaml:4: {key}enable_cuda_graph: not rewritten: only true and false can be carried over; nothing is changed",
    ),
    "a value on the next line": (
        engine("async_engine:", "  true"),
        "r.yaml:4: {key}async_engine: not rewritten: the value is not on the line of its key; nothing is changed",
    ),
    "shared": (
        "x: &x {async_engine: true, a: 1}\npolicy: {generation: {mcore_generation_config: *x}}\n",
        (
            "r.yaml:1: {key}async_engine: not rewritten: other keys share it through an alias or its layout is unusual; "
            "rewrite it by hand; nothing is changed"
        ),
    ),
    "unreadable": ("a: [\n", "r.yaml:2:1: not valid YAML: did not find expected node content"),
    "twice": (
        engine("async_engine: true", "async_engine: false"),
        "r.yaml:5:7: key 'async_engine' twice; the first is on line 4",
    ),
}


@pytest.mark.parametrize(("text", "expected"), BY_HAND.values(), ids=BY_HAND.keys())
def test_what_only_a_person_can_rewrite(write, text, expected):
    """It is reported with its line, and neither this file nor another one of the run is written."""
    path, other = write("r.yaml", text), write("other.yaml", RECIPE_OF_2025)
    assert refusal(other, path) == expected.replace("{key}", f"{MCORE}.")
    assert (path.read_text(), other.read_text()) == (text, RECIPE_OF_2025)
    assert sorted(os.listdir()) == ["other.yaml", "r.yaml"]


def test_the_mode_and_links_stay(write):
    """A file that others may not read stays that way, and a link goes on pointing to the file that was rewritten."""
    path = write("r.yaml", engine("async_engine: true", "max_tokens: 8"))
    path.chmod(0o640)
    Path("link.yaml").symlink_to("r.yaml")
    fix_files([Path("link.yaml")])
    assert Path("link.yaml").is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (engine("max_tokens: 8"), 0o640)


def test_a_disk_that_fills_up_changes_no_file(write, monkeypatch):
    """If the second text cannot be written, the first file keeps its old one and nothing is left beside them."""
    one, two = write("1.yaml", RECIPE_OF_2025), write("2.yaml", RECIPE_OF_2025)
    real, calls = os.fdopen, []

    def fdopen(handle, mode):
        calls.append(handle)
        if len(calls) == 2:
            os.close(handle)
            raise OSError(28, "No space left on device")
        return real(handle, mode)

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(OSError, match="No space left"):
        fix_files([one, two])
    assert one.read_text() == two.read_text() == RECIPE_OF_2025
    assert sorted(os.listdir()) == ["1.yaml", "2.yaml"]
