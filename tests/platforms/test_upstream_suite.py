"""How upstream's own suite is judged: rules, logs that end too soon, tables; on small inputs, without a checkout."""

import gc
import json
import re

import pytest
import torch

from reference_impl.platforms.packed import pack
from reference_impl.platforms.upstream_tests import __main__ as command
from reference_impl.platforms.upstream_tests import cuda_names, ranks, runner
from reference_impl.platforms.upstream_tests.outcomes import FileResult, Outcome, judged, read_log, stale
from reference_impl.platforms.upstream_tests.reasons import REASONS, RULES, Rule, explain
from reference_impl.platforms.upstream_tests.record import (
    BEGIN,
    END,
    Record,
    read,
    record_of,
    section,
    with_section,
    write,
)

A, B = Rule("several ranks", r"needs \d+ ranks"), Rule("CUDA graphs", r"CUDA graph", r"test_two")


def log(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def phase(test, outcome, message=""):
    return {"test": test, "outcome": outcome, "message": message}


def test_a_test_is_as_good_as_its_worst_phase(tmp_path):
    """Setup, call and teardown are phases of one test."""
    lines = [{"collected": ["t::a", "t::b"]}, phase("t::a", "passed"), phase("t::a", "passed"), phase("t::a", "passed")]
    lines += [phase("t::b", "passed"), phase("t::b", "failed", "ValueError: no"), phase("t::b", "passed")]
    assert read_log(log(tmp_path / "log", *lines)) == [
        Outcome("t::a", "passed"),
        Outcome("t::b", "failed", "ValueError: no"),
    ]


def test_what_a_crash_leaves_out_has_failed(tmp_path):
    """Three tests were collected, the process died in the second: two are missing, and say why."""
    lines = [{"collected": ["t::a", "t::b", "t::c"]}, phase("t::a", "passed")]
    outcomes = read_log(log(tmp_path / "log", *lines), "its process ended with status -11")
    assert [each.outcome for each in outcomes] == ["passed", "failed", "failed"]
    assert outcomes[2].message == "its process ended with status -11"
    assert read_log(tmp_path / "no log") == []


def test_what_did_not_pass_needs_a_reason():
    """A rule holds for a message, and for a name where it gives one; skips need a reason as failures do."""
    outcomes = [
        Outcome("t::one", "passed"),
        Outcome("t::two", "failed", "MissingOnCpuError: needs 4 ranks at megatron/core/x.py"),
        Outcome("t::test_two", "skipped", "CUDA graph"),
        Outcome("t::test_three", "failed", "CUDA graph"),
        Outcome("t::test_four", "skipped", "because"),
    ]
    result = judged("t.py", outcomes, rules=[A, B])
    assert (result.passed, dict(result.skipped)) == (1, {"several ranks": 1, "CUDA graphs": 1})
    assert [each.test for each in result.unexplained] == ["t::test_three", "t::test_four"]


def test_a_rule_that_nothing_meets_is_stale():
    """Over all files together."""
    results = [judged("t.py", [Outcome("t::a", "failed", "needs 2 ranks")], rules=[A, B]), FileResult("u.py")]
    assert stale(results, [A, B]) == [B]
    assert stale(results, [A]) == []


def test_a_rule_never_explains_everything():
    """No rule is so wide that an ordinary failure would meet it."""
    for message in (
        "AssertionError: assert 1 == 2 at tests/unit_tests/inference/x.py",
        "ValueError: no",
        "KeyError: 'a'",
    ):
        assert explain("tests/unit_tests/inference/test_x.py::test_simple", message) is None


def test_every_rule_has_a_reason_that_is_explained_and_every_reason_a_rule():
    """And every pattern is one."""
    assert {rule.reason for rule in RULES} == set(REASONS)
    for rule in RULES:
        assert re.compile(rule.message) and re.compile(rule.test)


@pytest.mark.parametrize(
    ("given", "expected"), [("cuda", "cpu"), ("cuda:0", "cpu"), ("cuda:cpu", "cpu"), ("cpu", "cpu"), ("cudas", "cudas")]
)
def test_every_spelling_of_the_device(given, expected):
    """`cuda:cpu` comes of a device's number that is a device here."""
    assert cuda_names.on_cpu(given) == expected


def test_tests_may_name_cuda_and_nobody_is_left_changed():
    """Within the block a CUDA device is the CPU; after it, torch is as it was."""
    before = torch.cuda.CUDAGraph, torch.Tensor.cuda, torch.cuda.is_available
    with cuda_names.answered():
        assert torch.zeros(2, device="cuda", pin_memory=True).to("cuda:0").device.type == "cpu"
        with pytest.raises(cuda_names.MissingOnCpuError, match="CUDA graph"):
            torch.cuda.CUDAGraph()
        # This file is no test of upstream's, so it gets the true answer.
        assert torch.cuda.is_available() is before[2]()
    assert (torch.cuda.CUDAGraph, torch.Tensor.cuda, torch.cuda.is_available) == before


def test_memory_falls_when_a_tensor_goes():
    """By its bytes: 1,000 float64 are 8,000, and a view of them is no more; a packed weight beside it does no harm."""
    packed = pack(torch.ones(2, 2))
    gc.collect()  # what earlier tests left may not go in between
    start = cuda_names.bytes_of_live_tensors()
    kept = torch.zeros(1000, dtype=torch.float64)
    view = kept[:10]
    assert cuda_names.bytes_of_live_tensors() - start == 8000
    del kept, view
    assert packed[0].is_mkldnn
    assert cuda_names.bytes_of_live_tensors() == start


def test_more_ranks_than_there_are_end_a_test_and_leave_one():
    """Sizes multiply; experts count by themselves; what is refused is followed by the group of one rank."""
    calls = []

    def initialize(tensor_model_parallel_size=1, pipeline_model_parallel_size=1, **kwargs):
        calls.append((tensor_model_parallel_size, pipeline_model_parallel_size))

    checked = ranks.refused_beyond(initialize, 1)
    checked(1, pipeline_model_parallel_size=1, expert_model_parallel_size=None)
    with pytest.raises(cuda_names.MissingOnCpuError, match="needs 6 ranks"):
        checked(2, pipeline_model_parallel_size=3)
    with pytest.raises(cuda_names.MissingOnCpuError, match="needs 4 ranks"):
        checked(expert_model_parallel_size=4)
    assert calls == [(1, 1)] * 3


def results():
    first = judged("a.py", [Outcome("t::a", "passed"), Outcome("t::b", "failed", "needs 2 ranks")], [A])
    return [first, judged("b.py", [Outcome("t::c", "failed", "ValueError")], [A])]


def test_the_record_adds_up_and_comes_back(tmp_path):
    """Two files: one test passed, one was skipped for want of ranks, one failed."""
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    write(record_of(results()), page)
    kept = read(tmp_path / "upstream-suite.json")
    assert (kept.passed(), kept.failed(), kept.skipped()) == (1, 1, 1)
    assert (kept.passed("b.py"), kept.failed("b.py"), kept.because("several ranks", "a.py")) == (0, 1, 1)
    text = page.read_text()
    assert text.startswith("# Title\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| a.py | {value}`1 <suite.passed('a.py')>` |" in text


def test_every_number_of_the_tables_is_bound():
    """Each value's expression gives the text beside it."""
    files = {"a.py": {"passed": 7, "CUDA graphs": 1, "FlashInfer": 2}, "b.py": {"passed": 1, "failed": 3}}
    suite = Record("2026-01-02", "x, 2 cores", "0.19.2", "2.14", files)
    values = re.findall(r"\{value\}`([^<]+) <(.+?)>`", section(suite))
    # Four of the run, three sums, what passed in each file and what did not, two reasons of all.
    assert len(values) == 13
    assert "| b.py | {value}`1 <suite.passed('b.py')>` | failed {value}`3 <suite.failed('b.py')>` |" in section(suite)
    assert suite.why("a.py") == "FlashInfer 2, CUDA graphs 1"
    for shown, expression in values:
        assert str(eval(expression, {"suite": suite})) == shown


def test_a_page_without_marks_is_named():
    with pytest.raises(ValueError, match="lacks the marks"):
        with_section("# Title", "text")


def test_a_line_a_file():
    """Name, counts, and the reasons of the skips; below it what nothing explains."""
    first, second = results()
    assert " ".join(command.line(first).split()) == "a.py passed 1 failed 0 skipped 1 several ranks 1"
    assert command.problems_of(second) == ["  failed without a reason: t::c: ValueError"]
    assert command.summary([first, second]) == ["passed 1, failed 1 (unexplained), skipped 1:", "    1 several ranks"]


def test_what_cannot_be_run_is_one_line(tmp_path, capsys):
    """No checkout, or one of another version."""
    assert command.main([str(tmp_path)]) == 2
    assert "has no tests/unit_tests/inference: expected a checkout of Megatron-LM" in capsys.readouterr().err
    (tmp_path / runner.SUITE).mkdir(parents=True)
    (tmp_path / "megatron/core").mkdir(parents=True)
    (tmp_path / "megatron/core/package_info.py").write_text("MAJOR = 0\nMINOR = 7\nPATCH = 3\n")
    assert runner.version_of(tmp_path) == "0.7.3"
    assert "0.7.3" in runner.why_not(tmp_path) or "not installed" in runner.why_not(tmp_path)


def test_files_in_order_and_by_word(tmp_path):
    for name in ("b/test_two.py", "test_one.py", "helper.py"):
        path = tmp_path / runner.SUITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    names = [path.name for path in runner.files(tmp_path)]
    assert names == ["test_two.py", "test_one.py"]
    assert [path.name for path in runner.files(tmp_path, ["one"])] == ["test_one.py"]
