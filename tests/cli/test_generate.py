"""`genref generate`: prompts in, answers and a run folder out, also when it is cut short."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from reference_impl.staleness.runs import SequenceRecord, read_run

TINY = ("generate", "--model", "tiny", "--greedy", "--max-new-tokens", "8")
RECIPE = ("--config", str(Path(__file__).parents[2] / "examples" / "recipes" / "tiny-megatron.yaml"))


def test_json_lines(genref):
    result = genref(*TINY, "--prompt", "abc", "--json", "--run-folder", "run")
    [answer] = result.json
    assert (result.status, result.err) == (0, "genref: run/run.jsonl\n")
    assert len(answer["token_ids"]) == len(answer["logprobs"]) == 8
    assert max(answer["logprobs"]) <= 0
    # The model's tokens are bytes.
    assert answer["text"] == bytes(answer["token_ids"]).decode(errors="replace")
    assert (answer["prompt_token_ids"], answer["prompt_length"]) == ([97, 98, 99], 3)
    assert answer["policy_epoch"] == answer["kv_cache_epoch"] == [[0, 0]]
    assert answer["num_evictions"] == 0
    assert answer["truncated"]
    header, written = [json.loads(line) for line in Path("run/run.jsonl").read_text().splitlines()]
    assert header == {"kind": "run", "model": "tiny", "backend": "megatron", "mode": "direct", "epoch": 0}
    assert written == {"kind": "sequence", **answer}


def test_prompts_from_everywhere_are_answered_in_their_order(genref):
    arguments = (*TINY, "--prompt", "a", "--prompt", "-", "--prompt", "e", "--json", "--run-folder", "run")
    result = genref(*arguments, stdin="b\n\n c\n   \nd")  # blank lines, and no newline at the end
    assert [answer["prompt"] for answer in sorted(result.json, key=lambda answer: answer["index"])] == [
        "a",
        "b",
        " c",
        "d",
        "e",
    ]
    assert [record.prompt for record in read_run("run").sequences] == ["a", "b", " c", "d", "e"]


def test_text_is_prompt_and_answer(genref):
    answer = genref(*TINY, "--prompt", "abc", "--json").json[0]["text"]
    assert genref(*TINY, "--prompt", "abc").out == f"abc\n{answer}\n\n"


def test_chat_without_a_format_is_the_plain_prompt(genref):
    assert genref(*TINY, "--prompt", "abc", "--chat").out == genref(*TINY, "--prompt", "abc").out


def test_weights_change_while_a_sequence_is_generated(genref):
    result = genref(*TINY, "--prompt", "abc", "--max-new-tokens", "32", "--update-every", "8", "--run-folder", "run")
    assert result.status == 0
    run = read_run("run")
    # Due at 8, 16 and 24 tokens; at 32 the sequence is over.
    assert [(update["epoch"], update["after_tokens"]) for update in run.updates] == [(1, 8), (2, 16), (3, 24)]
    assert [epoch for _, epoch in run.sequences[0].generated_policy.runs] == [0, 1, 2, 3]


def test_recipe_options_and_overrides(genref):
    arguments = ("generate", *RECIPE, "--prompt", "a", "--max-new-tokens", "6", "--json", "--run-folder", "run")
    assert len(genref(*arguments).json[0]["token_ids"]) == 6
    assert read_run("run").header["model"] == "tiny"  # from the recipe
    # An override is what was written last, and most explicitly.
    assert len(genref(*arguments, "policy.generation.max_new_tokens=5").json[0]["token_ids"]) == 5


def test_graphs_that_nobody_asked_for_need_no_warning(genref, caplog):
    for arguments in (("--model", "tiny"), RECIPE):
        result = genref("generate", *arguments, "--prompt", "a", "--max-new-tokens", "1")
        assert (result.status, result.err.count("\n"), caplog.records) == (0, 1, [])


def test_statistics_of_the_engine_are_shown_when_asked_for(genref, caplog):
    interval = "policy.generation.mcore_generation_config.logging_step_interval=4"
    assert genref(*TINY, "--prompt", "abc", interval).status == 0
    steps = [re.search(r"\| step (\d+) \|", message) for message in caplog.messages]
    assert [step[1] for step in steps if step] == ["4", "8"]  # a step for each of eight tokens


def test_one_bad_prompt_leaves_the_others_alone(genref):
    prompts = ("--prompt", "a", "--prompt", "", "--prompt", "b")
    result = genref(*TINY, *prompts, "--run-folder", "run")
    assert result.status == 1
    assert result.out == genref(*TINY, "--prompt", "a").out + genref(*TINY, "--prompt", "b").out
    assert result.err == "genref: prompt 2: the prompt is empty; at least one token is needed\ngenref: run/run.jsonl\n"
    assert [record.error is None for record in read_run("run").sequences] == [True, False, True]


def test_a_prompt_that_fills_the_context_has_an_empty_answer(genref):
    result = genref(*TINY, "--prompt", "a" * 16, "policy.max_total_sequence_length=16", "--run-folder", "run")
    assert result.status == 0
    [record] = read_run("run").sequences
    assert (record.token_ids, record.truncated, record.error) == ([], True, None)


def test_runs_of_the_same_second_have_folders_of_their_own(genref, monkeypatch):
    monkeypatch.setattr("reference_impl.cli.session.timestamp", lambda: "20260101-000000")
    for _ in range(3):
        assert genref(*TINY, "--prompt", "a").status == 0
    folders = sorted(Path("runs").iterdir())
    assert [folder.name for folder in folders] == [
        "generate-20260101-000000",
        "generate-20260101-000000-2",
        "generate-20260101-000000-3",
    ]
    assert [len(read_run(folder).sequences) for folder in folders] == [1, 1, 1]


class Terminal(io.StringIO):
    """A stream that says that somebody looks at it."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_not_steered_by_what_a_model_says(monkeypatch):
    from reference_impl.cli.generate import show

    record = SequenceRecord(index=0, prompt="a\nb", text="\x1b[2J")
    for stream, shown in ((Terminal(), "a\nb\n␛[2J\n\n"), (io.StringIO(), "a\nb\n\x1b[2J\n\n")):
        monkeypatch.setattr(sys, "stdout", stream)
        show(record, as_json=False, stop=threading.Event())
        assert stream.getvalue() == shown


def test_progress_is_for_a_terminal(genref, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    result = genref(*TINY, "--prompt", "a", "--json")
    assert len(result.json) == 1
    assert "generating:   0%" in terminal.getvalue()


# --- the process itself ---------------------------------------------------------------------------------------------

# One sequence that is over after five tokens, one that is refused, and two that take longer than anybody waits.
LONG = (
    *("generate", "--model", "tiny", "--greedy", "--json", "--run-folder", "run", "--update-every", "16"),
    *(
        "policy.max_total_sequence_length=1000",
        "--prompt",
        "a" * 995,
        "--prompt",
        "",
        "--prompt",
        "b",
        "--prompt",
        "cc",
    ),
)
INTERRUPTED = "genref: interrupted; what was generated is in run/run.jsonl\n"


def test_a_fresh_process_says_nothing_but_its_own(start_genref):
    graphs = "policy.generation.mcore_generation_config.num_cuda_graphs"
    process = start_genref(*TINY, "--prompt", "abc", "--json", "--run-folder", "run", f"{graphs}=3")
    out, err = process.communicate()
    assert process.returncode == 0
    assert [len(json.loads(line)["token_ids"]) for line in out.splitlines()] == [8]
    assert err == f"genref: {graphs}: 3, but CUDA graphs are off on a CPU\ngenref: run/run.jsonl\n"


@pytest.mark.parametrize("mode", ["direct", "coordinator"])
def test_ctrl_c_keeps_every_sequence(start_genref, tmp_path, mode):
    process = start_genref(*LONG, f"policy.generation.mode={mode}")
    wait_for_update(tmp_path / "run" / "run.jsonl", process)
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and to what it has started
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, INTERRUPTED)
    assert_every_sequence_is_there(tmp_path / "run")
    assert len(out.splitlines()) == 4
    # Besides Python's resource tracker, the coordinator.
    assert len(children) >= {"direct": 0, "coordinator": 2}[mode]
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_a_reader_that_leaves_ends_the_run(start_genref, tmp_path):
    process = start_genref(*LONG)
    head = subprocess.run(["head", "-n", "1"], stdin=process.stdout, capture_output=True, text=True, check=True)
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (130, INTERRUPTED)
    assert json.loads(head.stdout)["error"].startswith("the prompt is empty")
    assert_every_sequence_is_there(tmp_path / "run")


def wait_for_update(path: Path, process: subprocess.Popen) -> None:
    """Wait until the weights have changed, so that sequences are well under way."""
    while not (path.exists() and '"kind": "update"' in path.read_text()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def assert_every_sequence_is_there(folder: Path) -> None:
    """The four of `LONG`: over, refused, and twice as far as it had come."""
    done, refused, *cut = read_run(folder).sequences
    assert (len(done.token_ids), done.truncated, done.error) == (5, True, None)
    assert (refused.token_ids, refused.error) == ([], "the prompt is empty; at least one token is needed")
    for record in cut:
        assert record.error == "interrupted"
        assert 5 <= len(record.token_ids) == len(record.logprobs) < 900
        assert record.policy.length == record.prompt_length + len(record.token_ids)
