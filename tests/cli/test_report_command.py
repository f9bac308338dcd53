"""`genref report`: a page or a text of runs that were written by hand, and one line for what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.runs import RunWriter, SequenceRecord


def sequence(index, policy):
    """Two prompt tokens and three sampled ones, `policy` an epoch each."""
    runs = EpochRuns.from_tokens([policy[0], policy[0], *policy])
    attended = EpochRuns.from_tokens([None, None, *([policy[0]] * 3)])
    record = RequestRecord(index, runs, runs, attended, ((2, 5),), completion_epoch=policy[-1])
    return SequenceRecord(
        index=index,
        prompt=f"prompt {index}",
        prompt_length=2,
        prompt_token_ids=[1, 2],
        token_ids=[3, 4, 5],
        tokens=[" a", " b", " c"],
        text=" a b c",
        logprobs=[-0.5, -0.5, -0.5],
        record=record,
    )


@pytest.fixture
def folders(tmp_path):
    """`trained` with two steps, `plain` with none; the numbers of the tests below are counted from these."""
    with RunWriter(tmp_path / "trained") as writer:
        writer.header(model="tiny", backend="megatron", mode="direct", epoch=0)
        for index, policy in enumerate(([0, 0, 1], [1, 1, 1], [1, 2, 2], [2, 2, 2])):
            writer.sequence(sequence(index, policy))
        writer.step(step=2, consumed=[0, 1])
        writer.step(step=4, consumed=[2], dropped=[3])
    with RunWriter(tmp_path / "plain") as writer:
        writer.header(model="tiny", backend="megatron", mode="direct", epoch=0)
        for index in range(4):
            writer.sequence(sequence(index, [0, 0, 1]))
    foreign = {"output_versions": [1, 1, 3], "output_tokens": [5, 6, 7], "input_tokens": [1]}
    (tmp_path / "areal.jsonl").write_text(json.dumps(foreign) + "\n")


def test_a_page_and_where_it_is(genref, folders, tmp_path):
    result = genref("report", "trained")
    assert (result.status, result.out, result.err) == (0, "report: report.html\n", "")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<h1>tiny on megatron, direct</h1>" in page
    assert "Consumed by 2 training steps, 2 to 4." in page
    assert genref("report", "trained/run.jsonl", "-o", "other.html").out == "report: other.html\n"
    assert (tmp_path / "other.html").exists()


def test_text(genref, folders, tmp_path):
    result = genref("report", "trained", "--text")
    assert (result.status, result.err) == (0, "")
    assert re.search(r"^ +2 +1\.50 +2 +1 +100%", result.out, re.MULTILINE)
    assert re.search(r"^ +4 +1 +1 +0 +0 +3 +2\.00 +0$", result.out, re.MULTILINE)
    assert not (tmp_path / "report.html").exists()
    genref("report", "trained", "--text", "-o", "report.html")
    assert (tmp_path / "report.html").exists()


def test_one_step(genref, folders):
    assert "Consumed by training step 4." in genref("report", "trained", "--text", "--step", "4").out
    said = "The run names no training step that consumed it, so staleness is shown as if step 1 had consumed all of it."
    assert said in genref("report", "plain", "--text").out
    assert said.replace("step 1", "step 7") in genref("report", "plain", "--text", "--step", "7").out


def test_show_draws_the_sequences_one_asks_for(genref, folders, tmp_path):
    assert genref("report", "trained", "--show", "0", "--show", "3").status == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>sequence (\d+)", page) == ["0", "3"]
    text = genref("report", "--text", "--show", "2", "--show", "1", "trained").out
    assert "prompt 1\n⟦1⟧ a b c\n" in text
    assert "prompt 2\n⟦1⟧ a⟦2⟧ b c\n" in text
    assert "prompt 0" not in text


def test_several_runs_are_sections_and_two_can_be_compared(genref, folders, tmp_path):
    genref("report", "trained", "plain", "areal.jsonl")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<section class="run" id="run\d"><h2>(\w+)', page) == ["trained", "plain", "areal"]
    genref("report", "trained", "plain", "--compare")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Two runs compared" in page
    assert "<article>" not in page
    genref("report", "trained", "plain", "--compare", "--show", "1")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<h4>sequence (\d+)", page) == ["1", "1"]
    text = genref("report", "trained", "plain", "--compare", "--text").out
    # (1.5 + 3) / 2 over the steps of one, 1 of the other.
    assert re.search(r"^mean_policy_staleness +2\.250 +1 +−1\.250$", text, re.MULTILINE)


def test_a_log_of_another_system(genref, folders):
    out = genref("report", "areal.jsonl", "--text").out
    assert re.search(r"^ +3 +2\.00 +2 +2 +100% +– +– +– +0% +– +– +– +0%$", out, re.MULTILINE)


def test_a_cut_line_is_counted(genref, folders, tmp_path):
    path = tmp_path / "plain" / "run.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    out = genref("report", "plain", "--text").out
    assert "3 sequences, 9 generated tokens, 0 updates. Unreadable lines, left out: 1." in out


WRONG = {
    "no run": (("report",), "Missing argument 'RUN'."),
    "a missing folder": (("report", "nowhere"), re.compile("nowhere.*: cannot be read: No such file or directory")),
    "an empty file": (("report", "empty.jsonl"), re.compile("empty.jsonl, line 1.*empty.*")),
    "a wrong line": (
        ("report", "wrong"),
        "wrong/run.jsonl, line 2, policy_epoch: the first boundary must start at token 0, got 3",
    ),
    "a step that the run does not have": (
        ("report", "trained", "--step", "3"),
        "trained: no training step 3 in the run; its steps are 2 to 4",
    ),
    "a step before an epoch": (
        ("report", "plain", "--step", "0"),
        "plain: step 0 is older than the policy epoch 1 of sampled token 2 of request 0",
    ),
    "an index that is not there": (
        ("report", "plain", "--show", "0", "--show", "4"),
        "--show: no sequence 4; there are 4, 0 to 3",
    ),
    "an index that is none": (
        ("report", "plain", "--show", "first"),
        re.compile("Invalid value for '--show': .*valid integer.*"),
    ),
    "one run to compare": (("report", "plain", "--compare"), "--compare: expected two runs, got 1"),
    "a page over a run": (
        ("report", "plain/run.jsonl", "-o", "plain/run.jsonl"),
        "--output: plain/run.jsonl is one of the runs",
    ),
    "a page over a run folder's file": (
        ("report", "plain", "-o", "plain/run.jsonl"),
        "--output: plain/run.jsonl is one of the runs",
    ),
    "a page where a folder is": (("report", "plain", "-o", "plain"), "plain: Is a directory"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG.keys())
def test_one_line_and_status_2(genref, folders, tmp_path, arguments, message):
    (tmp_path / "empty.jsonl").write_text("")
    with RunWriter(tmp_path / "wrong") as writer:
        writer.header(model="tiny", backend="megatron", mode="direct", epoch=0)
        writer.write({"kind": "sequence", **sequence(0, [0, 0, 1]).to_line(), "policy_epoch": [[3, 0]]})
    result = genref(*arguments)
    assert (result.status, result.out) == (2, "")
    said = result.err.removeprefix("genref: ").rstrip("\n")
    assert message.fullmatch(said) if isinstance(message, re.Pattern) else said == message


def test_the_report_waits_for_no_heavy_library(folders, tmp_path):
    script = """
import sys
from reference_impl.cli.main import run
sys.argv = ["genref", "report", "plain", "--text"]
try:
    run()
finally:
    print(*{"torch", "transformers", "megatron", "plotly", "rich"} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "tiny on megatron" in done.stdout
    assert done.stderr == "\n"


def test_the_demo_and_then_its_report(genref):
    assert genref("demo", "--model", "tiny", "--run-folder", "demo").status == 0
    result = genref("report", "demo", "--text")
    assert result.status == 0
    assert "8 sequences, 384 generated tokens, 2 updates." in result.out
    # All eight began at epoch 0 and their last token is of epoch 2; nothing was trained on them.
    assert re.search(r"^ +2 +2\.00 +2 +2 +100% +2\.00 +2 +2 +100% +2\.00 +2 +2 +100%$", result.out, re.MULTILINE)
