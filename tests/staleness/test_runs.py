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

from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.records import RequestRecord
from reference_impl.staleness.runs import RunWriter, SequenceRecord, Step, read_run


def runs(*boundaries, length=5):
    return EpochRuns.from_boundaries(boundaries, length)


def unknown(index, policy, kv, *, length=5, sampled=((2, 5),), **more):
    """What an old run folder, or upstream's stamps, tell: two epochs and little else."""
    counts = {"num_evictions": None, "num_preemptions": None, "num_recomputes": None, "prefix_cached_tokens": None}
    return RequestRecord(index, policy, kv, EpochRuns.missing(length), sampled, **{**counts, **more})


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
    record=RequestRecord(
        request=0,
        policy_epoch=runs((0, 0), (4, 1)),
        kv_cache_epoch=runs((0, 0), (3, 1)),
        oldest_attended_kv_epoch=runs((0, None), (2, 0)),
        sampled=((2, 5),),
        num_evictions=1,
        num_preemptions=2,
        num_recomputes=0,
        prefix_cached_tokens=None,
        admission_epoch=0,
        completion_epoch=1,
    ),
    upstream=unknown(0, runs((0, 0), (3, 1)), runs((0, 0), (3, 1))),
    reward=0.5,
    truncated=True,
)
INTERRUPTED = dataclasses.replace(
    DONE,
    index=2,
    record=dataclasses.replace(DONE.record, request=2, status="aborted"),
    upstream=None,
    reward=None,
    truncated=False,
    error="interrupted",
)
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
    assert DONE.generated_attended.runs == ((0, 0),)
    assert (DONE.length, DONE.num_generated) == (5, 3)


def test_a_trajectory_of_two_turns_keeps_its_spans(tmp_path):
    turns = dataclasses.replace(DONE.record, sampled=((2, 3), (4, 5)))
    write(tmp_path, dataclasses.replace(DONE, record=turns))
    [sequence] = read_run(tmp_path).sequences
    assert sequence.record == turns
    assert sequence.generated_policy.runs == ((0, 0), (1, 1))  # tokens 2 and 4 of the whole sequence


def test_what_training_takes_is_named_by_the_index():
    elsewhere = dataclasses.replace(DONE, index=7)
    assert elsewhere.rollout() == dataclasses.replace(DONE.record, request=7)
    # Without a record the tokens are there, and nothing is said of their epochs.
    bare = dataclasses.replace(DONE, record=None).rollout()
    assert (bare.num_sampled, bare.policy_epoch.stamped, bare.num_evictions, bare.status) == (3, 0, None, "finished")
    assert FAILED.rollout().status == "failed"


# A line as folders had it before records: no field after the eleven, epochs as upstream stamps them.
OLD = {
    "kind": "sequence",
    **{name: getattr(DONE, name) for name in ("index", "prompt", "prompt_length", "prompt_token_ids", "token_ids")},
    **{name: getattr(DONE, name) for name in ("tokens", "text", "logprobs")},
    "policy_epoch": [[0, 0], [3, 1]],
    "kv_cache_epoch": [[0, 0], [3, 1]],
    "num_evictions": 0,
    "truncated": False,
    "error": None,
}
OLD_FAILED = {
    **OLD,
    **{name: [] for name in ("prompt_token_ids", "token_ids", "tokens", "logprobs")},
    **dict.fromkeys(("policy_epoch", "kv_cache_epoch")),
    "index": 1,
    "prompt_length": 0,
    "error": "too long",
}


def test_an_old_folder_reads_and_what_it_does_not_say_is_not_known(tmp_path):
    path = write(tmp_path)
    with path.open("a") as file:
        for old in (OLD, {**OLD, "index": 2, "error": "interrupted"}, OLD_FAILED):
            file.write(json.dumps(old) + "\n")
    done, failed, cut = read_run(tmp_path).sequences
    epochs = runs((0, 0), (3, 1))
    assert done.record == unknown(0, epochs, epochs, num_evictions=0)
    assert (done.upstream, done.reward) == (None, None)
    assert cut.record == unknown(2, epochs, epochs, num_evictions=0, status="aborted")
    assert failed.record is None


def test_training_steps_come_back_in_their_order(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.header(**HEADER)
        for record in (DONE, INTERRUPTED, FULL):
            writer.sequence(record)
        writer.step(step=6, consumed=np.array([3, 0]), dropped=[2])
        writer.step(step=5, consumed=range(0))
    assert read_run(tmp_path).steps == [Step(5, ()), Step(6, (3, 0), (2,))]


def test_a_step_whose_sequence_was_on_a_lost_line_keeps_the_others(tmp_path):
    path = write(tmp_path, DONE, FAILED)
    path.write_bytes(path.read_bytes()[:-20] + b"\n")
    with RunWriter(tmp_path) as writer:
        writer.step(step=6, consumed=[0, 1])
    run = read_run(tmp_path)
    assert (run.steps, run.bad_lines) == ([Step(6, (0,))], 1)


def test_a_failed_sequence_has_no_epochs_to_ask_for():
    with pytest.raises(ValueError, match="sequence 1 has no epochs: the prompt has 9000 tokens"):
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


def line(record, index=9, **changes):
    """A further line with the record's fields; its index is another one, so that only the changes are wrong."""
    return {"kind": "sequence", **record.to_line(), "index": index, **changes}


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
    "a boundary past the end": (
        line(DONE, kv_cache_epoch=[[0, 0], [3, 1], [5, 2]]),
        "kv_cache_epoch: boundary 2 starts at token 5, past the end of 5 tokens",
    ),
    "a bool for an epoch": (
        line(DONE, oldest_attended_kv_epoch=[[0, True]]),
        "oldest_attended_kv_epoch: epoch of boundary 0 must be an integer, got True",
    ),
    "a policy epoch that falls": (
        line(DONE, policy_epoch=[[0, 1], [3, 0]], kv_cache_epoch=[[0, 1]], oldest_attended_kv_epoch=None),
        "token 3 of request 9: policy epoch falls from 1 to 0",
    ),
    "a KV epoch older than the policy epoch": (
        line(DONE, kv_cache_epoch=[[0, 0]], prefix_cached_tokens=0),
        "token 4 of request 9: KV epoch 0 is older than its policy epoch 1; policy staleness is never below .*",
    ),
    "an attended epoch newer than the policy epoch": (
        line(DONE, oldest_attended_kv_epoch=[[0, None], [2, 1]]),
        "token 2 of request 9: oldest attended KV epoch 1 is newer than its policy epoch 0",
    ),
    "spans outside the sequence": (
        line(DONE, sampled=[[2, 6]]),
        "sampled: sampled span 2:6 does not lie after token 0 of 5 tokens",
    ),
    "spans that are none": (
        line(DONE, sampled=[2, 5]),
        r"sampled: expected a list of \[start, stop\], or null, got \[2,",
    ),
    "an unknown status": (
        line(DONE, status="done"),
        "status: expected one of finished, aborted, failed, or null, got 'd",
    ),
    "a negative count": (
        line(DONE, num_recomputes=-1),
        "num_recomputes: expected an integer of 0 or more, or null, got",
    ),
    "a reward that is no number": (
        line(DONE, reward=float("nan")),
        "reward: expected a finite number, or null, got nan",
    ),
    "upstream's stamps that start late": (
        line(DONE, upstream={"policy_epoch": [[1, 0]], "kv_cache_epoch": None}),
        "upstream: policy_epoch: the first boundary must start at token 0, got 1",
    ),
    "an index that is there already": (
        line(DONE, index=0),
        "index: sequence 0 is there already; a sequence has one line",
    ),
    "a step without what it consumed": (
        {"kind": "step", "step": 6, "dropped": []},
        "consumed: missing, expected a list of sequence indices",
    ),
    "a step that consumed what is not there": (
        {"kind": "step", "step": 6, "consumed": [0, 1], "dropped": []},
        "consumed: no sequence 1 in the run",
    ),
    "a step that consumed and dropped the same": (
        {"kind": "step", "step": 6, "consumed": [0], "dropped": [0]},
        "dropped: sequence 0 is named twice",
    ),
    "a step before the epoch": (
        {"kind": "step", "step": 0, "consumed": [0], "dropped": []},
        "step: 0 is older than policy_epoch 1 of token 4 of sequence 0",
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


def test_a_step_before_a_completion_and_a_step_twice(tmp_path):
    late = dataclasses.replace(DONE, record=dataclasses.replace(DONE.record, completion_epoch=4))
    write(tmp_path, late)
    with RunWriter(tmp_path) as writer:
        writer.step(step=3, consumed=[0])
    with pytest.raises(ValueError, match="line 4, step: 3 is older than completion_epoch 4 of sequence 0$"):
        read_run(tmp_path)
    with RunWriter(tmp_path) as writer:
        writer.step(step=3, consumed=[])
    with pytest.raises(ValueError, match="line 5, step: step 3 is there already; a training step has one line$"):
        read_run(tmp_path)


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


@pytest.mark.parametrize("module", ["epochs", "runs", "report.page", "report.text", "report.terminal"])
def test_the_light_modules_load_no_heavy_library(module):
    script = f"""
import sys
import reference_impl.staleness.{module}
print(*[name for name in ("torch", "megatron", "plotly", "rich") if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
