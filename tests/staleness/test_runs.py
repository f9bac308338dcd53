"""The run folder: what is written comes back, an interruption loses no finished line, a wrong line is named."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reference_impl.staleness.runs import RunWriter, SequenceRecord, read_run

HEADER = {"model": "smollm2", "backend": "megatron", "mode": "direct", "epoch": 0}
DONE = SequenceRecord(
    index=0,
    prompt="Paris,\nLyon",
    prompt_length=2,
    prompt_token_ids=[5, 6],
    token_ids=[7, 8, 9],
    tokens=[" Nîmes", "\n", "\ud83d"],  # the last is half a character: a byte-level tokenizer does make these
    text=" Nîmes\n\ud83d",
    logprobs=[-0.25, -1.0, 0.0],
    policy_epoch=[[0, 0], [4, 1]],
    kv_cache_epoch=[[0, 0], [3, 1]],
    num_evictions=1,
    truncated=True,
)
INTERRUPTED = dataclasses.replace(DONE, index=2, truncated=False, error="interrupted")
FULL = SequenceRecord(index=3, prompt="a", prompt_length=1, prompt_token_ids=[5], truncated=True)
FAILED = SequenceRecord(index=1, prompt="too long", error="the prompt has 9000 tokens, the limit is 2048")


def write(folder, *records):
    with RunWriter(folder) as writer:
        writer.header(**HEADER)
        writer.update(epoch=1, after_tokens=2, what="a step of SGD")
        for record in records:
            writer.sequence(record)
    return writer.path


def test_a_run_comes_back_as_it_was_written(tmp_path):
    path = write(tmp_path / "new" / "run", FAILED, DONE)
    run = read_run(path.parent)
    assert run.header == HEADER
    assert run.updates == [{"epoch": 1, "after_tokens": 2, "what": "a step of SGD"}]
    assert run.sequences == [DONE, FAILED]  # ordered by index, whichever finished first
    assert run.bad_lines == 0
    assert read_run(path) == run


def test_a_sequence_that_was_interrupted_keeps_what_it_had_come_to(tmp_path):
    write(tmp_path, INTERRUPTED)
    assert read_run(tmp_path).sequences == [INTERRUPTED]
    assert INTERRUPTED.generated_policy.runs == ((0, 0), (2, 1))


def test_a_sequence_without_tokens_needs_no_epochs(tmp_path):
    write(tmp_path, FULL, FAILED)
    assert read_run(tmp_path).sequences == [FAILED, FULL]
    assert [record.has_epochs for record in (DONE, INTERRUPTED, FULL, FAILED)] == [True, True, False, False]


def test_epochs_index_the_whole_sequence_and_the_generated_part_counts_anew():
    assert DONE.policy.runs == ((0, 0), (4, 1))
    assert DONE.kv.expand().tolist() == [0, 0, 0, 1, 1]
    assert DONE.generated_policy.runs == ((0, 0), (2, 1))
    assert DONE.generated_kv.expand().tolist() == [0, 1, 1]


def test_a_failed_sequence_has_no_epochs_to_ask_for():
    with pytest.raises(ValueError, match="sequence 1 has no policy_epoch: the prompt has 9000 tokens"):
        _ = FAILED.generated_policy


def test_a_line_cut_at_the_end_is_counted_and_the_rest_is_used(tmp_path):
    path = write(tmp_path, DONE, FAILED)
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(path)
    assert (run.sequences, run.bad_lines) == ([DONE], 1)


def test_a_second_run_in_the_folder_is_whole_although_the_first_was_cut(tmp_path):
    path = write(tmp_path, DONE)
    path.write_bytes(path.read_bytes()[:-20])
    write(tmp_path, FAILED)
    run = read_run(path)
    assert (run.sequences, run.bad_lines) == ([FAILED], 0)


def test_a_killed_writer_keeps_the_lines_it_wrote(tmp_path):
    script = """
import sys
from reference_impl.staleness.runs import RunWriter, SequenceRecord
writer = RunWriter(sys.argv[1])
writer.header(model="m", backend="b", mode="direct", epoch=0)
writer.sequence(SequenceRecord(index=0, prompt="p", error="e"))
print("written", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "written\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL if os.name == "posix" else process.returncode
    assert [record.error for record in read_run(tmp_path).sequences] == ["e"]


def test_the_writer_refuses_nothing(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write({"kind": "note", "array": np.arange(2), "scalar": np.float32(0.5), "path": Path("a")})
    written = json.loads(writer.path.read_text())
    assert written == {"kind": "note", "array": [0, 1], "scalar": 0.5, "path": repr(Path("a"))}


def line(record, **changes):
    return {"kind": "sequence", **vars(record), **changes}


def without(record, name):
    return {key: value for key, value in line(record).items() if key != name}


WRONG = {
    "an unknown kind": ({"kind": "sequense"}, "kind: expected one of .*, got 'sequense'; nearest: 'sequence'"),
    "no object": ([1, 2], r"kind: expected a JSON object with a kind, got \[1, 2\]"),
    "an update without epoch": (
        {"kind": "update", "epochs": 1, "after_tokens": 1, "what": ""},
        "epoch: missing, expected an integer of 0 or more; nearest: 'epochs'",
    ),
    "a missing field": (without(DONE, "tokens"), "tokens: missing, expected a list of strings"),
    "a bool for a count": (line(DONE, index=True), "index: expected an integer of 0 or more, got True"),
    "a string for ids": (line(DONE, token_ids="7 8"), "token_ids: expected a list of token ids, got '7 8'"),
    "a null log-probability": (line(DONE, logprobs=[0.0, None, 0.0]), r"logprobs: expected a list of numbers, got \["),
    "fewer texts than ids": (line(DONE, tokens=["a"]), "tokens: expected 3 entries, got 1"),
    "a wrong prompt length": (line(DONE, prompt_length=3), "prompt_token_ids: expected 3 entries, got 2"),
    "epochs that start late": (
        line(DONE, policy_epoch=[[1, 0]]),
        "policy_epoch: the first boundary must start at token 0, got 1",
    ),
    "no epochs, no error": (line(DONE, kv_cache_epoch=None), "kv_cache_epoch: sequence 0 has no kv_cache_epoch.*"),
    "an interrupted sequence without epochs": (
        line(INTERRUPTED, policy_epoch=None),
        "policy_epoch: sequence 2 has no policy_epoch: interrupted",
    ),
    "an error, and texts without ids": (line(FAILED, tokens=["a"]), "tokens: expected 0 entries, got 1"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_line_of_another_shape_is_named(tmp_path, wrong, message):
    path = write(tmp_path, DONE)
    with path.open("a") as file:
        file.write(json.dumps(wrong) + "\n")
    with pytest.raises(ValueError, match=f"^{path}, line 4, {message}") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"run\.jsonl: cannot be read: No such file or directory"):
        read_run(tmp_path)


@pytest.mark.parametrize("content", ["", "\n", "no JSON at all\n"])
def test_a_file_without_a_run_is_refused(tmp_path, content):
    (tmp_path / "run.jsonl").write_text(content)
    with pytest.raises(ValueError, match=r"run\.jsonl, line 1, kind: no line of kind 'run'"):
        read_run(tmp_path)


def test_a_run_without_a_sequence_is_refused(tmp_path):
    path = write(tmp_path)
    with pytest.raises(ValueError, match=f"^{path}, line 2, kind: no line of kind 'sequence'; the run is empty$"):
        read_run(path)


def test_a_sequence_before_any_header_is_refused(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.sequence(DONE)
    with pytest.raises(ValueError, match=r"line 1, kind: expected 'run' on the first line, got 'sequence'"):
        read_run(tmp_path)


@pytest.mark.parametrize("module", ["epochs", "runs"])
def test_the_light_modules_load_no_heavy_library(module):
    script = f"""
import sys
import reference_impl.staleness.{module}
print(*[name for name in ("torch", "megatron", "plotly", "rich") if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
