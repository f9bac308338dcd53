"""Other systems' logs: what each shape says comes out, what it does not say stays unknown, a wrong line is named."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.staleness.consumption import consume
from reference_impl.staleness.epochs import EpochRuns
from reference_impl.staleness.metrics import measure
from reference_impl.staleness.readers import areal, megatron, sglang, verl, vllm
from reference_impl.staleness.readers.detect import SHAPES, read_any
from reference_impl.staleness.runs import RunWriter, SequenceRecord, Step

# In the shapes that the systems document, with values of our own. Prompts of 4 tokens.
SGLANG = {
    "text": " a sea of light",
    "output_ids": [11, 12, 13, 14, 15, 16, 17],
    "meta_info": {
        "id": "61b285c0",
        "finish_reason": {"type": "length", "length": 7},
        "prompt_tokens": 4,
        "weight_version": "4",
        "weight_versions": [{"version": "3", "start": 0, "end": 3}, {"version": "4", "start": 3, "end": 7}],
        "total_retractions": 1,
        "completion_tokens": 7,
        "cached_tokens": 2,
        "dp_rank": None,
        "e2e_latency": 0.27,
    },
}
VLLM = {
    "request_id": "generate-tokens-7",
    "prompt_token_ids": [1, 2, 3, 4],
    "outputs": [
        {
            "index": 0,
            "text": " the tide",
            "token_ids": [21, 22, 23],
            "finish_reason": "stop",
            "weight_versions": [{"version": "40", "start": 0, "end": 1}, {"version": "41", "start": 1, "end": 3}],
        }
    ],
    "finished": True,
}
VLLM_HTTP = {
    "id": "cmpl-9",
    "object": "text_completion",
    "model": "policy",
    "choices": [
        {
            "index": 0,
            "text": " the tide",
            "finish_reason": "abort",
            "weight_versions": [{"version": "40", "start": 0, "end": 2}],
        }
    ],
    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
}
AREAL = {
    "input_tokens": [1, 2, 3, 4],
    "output_tokens": [31, 32, 33, 34, 35],
    "output_logprobs": [-0.1, -0.2, -0.3, -0.4, -0.5],
    "output_versions": [3, 3, 5, 5, 5],
    "stop_reason": "stop",
}
AREAL_BATCH = {  # two turns with a tool's answer between them, padded by 2 on the right
    "input_ids": [[1, 2, 31, 32, 7, 8, 33, 0, 0]],
    "loss_mask": [[0, 0, 1, 1, 0, 0, 1, 0, 0]],
    "logprobs": [[0.0, 0.0, -0.1, -0.2, 0.0, 0.0, -0.3, 0.0, 0.0]],
    "versions": [[-1, -1, 5, 5, -1, -1, 6, 0, 0]],
    "attention_mask": [[1, 1, 1, 1, 1, 1, 1, 0, 0]],
    "rewards": [0.5],
}
AREAL_FILE = {
    "task_id": 17,
    "sample_idx": 1,
    "seqlen": 10,
    "prompt_len": 4,
    "head_version": 5,
    "tail_version": 6,
    "version_rle": [[5, 2], [6, 2]],
    "reward": 1.0,
    "prompt": "Write one sentence.",
    "completion": "The sea is deep.",
}
MEGATRON = {  # an answer of its completions endpoint
    "id": "5f3e",
    "object": "text_completion",
    "choices": [
        {
            "index": 0,
            "text": " a wave",
            "finish_reason": "stop",
            "prompt_token_ids": [1, 2, 3, 4],
            "generation_token_ids": [41, 42, 43, 44, 45],
            "generation_log_probs": [-0.1] * 5,
            "policy_epoch": [[0, 5], [6, 6]],
            "kv_cache_epoch": [[0, 5], [6, 6]],
            "num_evictions": 0,
        }
    ],
}
MEGATRON_CHAT = {
    "id": "chatcmpl-1",
    "choices": [
        {
            "finish_reason": "length",
            "message": {
                "role": "assistant",
                "content": " a wave",
                **{
                    name: MEGATRON["choices"][0][name]
                    for name in ("prompt_token_ids", "generation_token_ids", "policy_epoch")
                },
                "kv_cache_epoch": [[0, 6]],
                "num_evictions": 2,
            },
        }
    ],
}
MEGATRON_RESPONSE = {
    "response": {"role": "assistant", "content": " a wave"},
    "token_ids": [1, 2, 3, 4, 41, 42, 43, 44, 45],
    "prompt_length": 4,
    "finish_reason": "stop",
    "policy_epoch": [[0, 5], [6, 6]],
    "kv_cache_epoch": [[0, 5], [6, 6]],
    "num_evictions": 0,
}
MEGATRON_ROLLOUT = {
    "trajectory": [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]],
    "reward": 1.0,
    "generation_mask": [[False, False, True, True], [False, False, False, False, False, True, True]],
    "env_id": "sums",
    "policy_epoch": [[[0, 5]], [[0, 5], [5, 6]]],
    "kv_cache_epoch": [[[0, 5]], [[0, 6]]],
    "num_evictions": [1, 2],
}
VERL = {
    "status": "success",
    "prompt_len": 4,
    "response_len": 5,
    "seq_len": 9,
    "global_steps": 7,
    "min_global_steps": 5,
    "max_global_steps": 5,
}
VERL_OUTPUT = {
    "token_ids": [51, 52, 53, 54, 55],
    "stop_reason": "completed",
    "num_preempted": 0,
    "extra_fields": {"global_steps": 5, "min_global_steps": 3, "max_global_steps": 5},
}
EVERY = {
    name: line
    for name, line in globals().items()
    if name.isupper()
    and isinstance(line, dict)
    and name.split("_")[0] in ("SGLANG", "VLLM", "AREAL", "MEGATRON", "VERL")
}
SYSTEM = {"SGLANG": "SGLang", "VLLM": "vLLM", "AREAL": "AReaL", "MEGATRON": "Megatron", "VERL": "verl"}


def file_of(folder: Path, *lines: object) -> Path:
    """The lines as JSON; strings as they are."""
    path = folder / "rollouts.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def changed(line: dict, **fields: object) -> dict:
    """A copy with other fields; `meta_info__x` is the field `x` in `meta_info`."""
    line = copy.deepcopy(line)
    for name, value in fields.items():
        *places, last = name.split("__")
        inner = line
        for place in places:
            inner = inner[place]
        inner[last] = value
    return line


def runs_of(*runs: tuple[int | None, int]) -> EpochRuns:
    joined = EpochRuns((), 0)
    for epoch, tokens in runs:
        joined = joined.append(epoch, tokens)
    return joined


def unknown_besides(record, *known: str) -> bool:
    """Whether all that is not named is unknown."""
    counts = {"num_evictions", "num_preemptions", "num_recomputes", "prefix_cached_tokens"}
    epochs = {"admission_epoch", "completion_epoch"}
    runs = {"kv_cache_epoch", "oldest_attended_kv_epoch"}
    return all(getattr(record, name) is None for name in (counts | epochs) - set(known)) and all(
        getattr(record, name).stamped == 0 for name in runs - set(known)
    )


# --- each system ------------------------------------------------------------------------------------------------------


def test_sglang_stamps_output_tokens():
    record = sglang.read(SGLANG)
    assert record.request == "61b285c0"
    assert record.policy_epoch == runs_of((None, 4), (3, 3), (4, 4))
    assert record.sampled == ((4, 11),)
    assert record.num_evictions == 1
    assert record.status == "finished"
    assert unknown_besides(record, "num_evictions")
    values = measure(consume(6, [record]))
    assert values["token_mean_policy_staleness"] == pytest.approx((3 * 3 + 4 * 2) / 7)
    assert (values["policy_coverage"], values["kv_cache_coverage"]) == (1, 0)


def test_sglang_stamps_the_prompts_kv_where_it_is_asked_to():
    spans = [{"version": "2", "start": 0, "end": 2}, {"version": "3", "start": 2, "end": 4}]
    record = sglang.read(changed(SGLANG, meta_info__prefill_weight_versions=spans))
    assert record.kv_cache_epoch == runs_of((2, 2), (3, 2), (None, 7))


def test_sglang_without_an_output_token_gives_a_span_without_one():
    meta = {"id": "e", "prompt_tokens": 4, "weight_versions": [{"version": "default", "start": 0, "end": 0}]}
    record = sglang.read({"output_ids": [], "meta_info": {**meta, "finish_reason": {"type": "abort"}}})
    assert (record.length, record.sampled, record.status) == (4, (), "aborted")


def test_vllm_stamps_output_tokens_of_a_request_and_of_a_choice():
    record = vllm.read(VLLM)
    assert (record.request, record.status) == ("generate-tokens-7", "finished")
    assert record.policy_epoch == runs_of((None, 4), (40, 1), (41, 2))
    assert unknown_besides(record)
    record = vllm.read(VLLM_HTTP)
    assert (record.request, record.status) == ("cmpl-9", "aborted")
    assert record.policy_epoch == runs_of((None, 4), (40, 2))
    record = vllm.read({**VLLM["outputs"][0], "id": "flat", "prompt_length": 1})
    assert record.policy_epoch == runs_of((None, 1), (40, 1), (41, 2))


def test_vllms_null_is_not_an_empty_list():
    """`null`: versions are not known. `[]`: there is no token."""
    record = vllm.read(changed(VLLM, outputs=[{**VLLM["outputs"][0], "weight_versions": None}]))
    assert record.policy_epoch == runs_of((None, 7))
    assert record.num_sampled == 3
    record = vllm.read({"weight_versions": [], "token_ids": [], "prompt_length": 4})
    assert (record.length, record.num_sampled) == (4, 0)


def test_tokens_between_spans_and_after_the_last_are_missing():
    spans = [{"version": "3", "start": 1, "end": 3}, {"version": "4", "start": 5, "end": 6}]
    record = sglang.read(changed(SGLANG, meta_info__weight_versions=spans))
    assert record.of_sampled("policy_epoch") == runs_of((None, 1), (3, 2), (None, 2), (4, 1), (None, 1))
    assert measure(consume(6, [record]))["policy_coverage"] == pytest.approx(3 / 7)


def test_labels_stand_for_checkpoints_when_they_are_told():
    spans = [{"version": "default", "start": 0, "end": 3}, {"version": "step-12", "start": 3, "end": 7}]
    line = changed(SGLANG, meta_info__weight_versions=spans)
    record = sglang.read(line, versions={"default": 0, "step-12": 12})
    assert record.of_sampled("policy_epoch") == runs_of((0, 3), (12, 4))
    with pytest.raises(
        ValueError,
        match=r"^meta_info\.weight_versions\[1\]\.version: expected the number of a checkpoint, got 'step-12'",
    ):
        sglang.read(line, versions={"default": 0})


def test_areal_stamps_each_output_token():
    record = areal.read(AREAL, "mine")
    assert record.request == "mine"
    assert record.policy_epoch == runs_of((None, 4), (3, 2), (5, 3))
    assert unknown_besides(record)
    assert areal.read(changed(AREAL, stop_reason="abort")).status == "aborted"


def test_areals_training_batch_says_which_tokens_were_generated():
    record = areal.read(AREAL_BATCH)
    assert record.length == 7  # the padding is none
    assert record.sampled == ((2, 4), (6, 7))
    assert record.policy_epoch == runs_of((None, 2), (5, 2), (None, 2), (6, 1))
    assert record.of_sampled("policy_epoch") == runs_of((5, 2), (6, 1))
    # Without masks, what has a version was generated; with the loss mask alone, what is behind it is padding.
    assert areal.read({"versions": [-1, 5, 5, -1, 6]}).sampled == ((1, 3), (4, 5))
    without = {name: value for name, value in AREAL_BATCH.items() if name != "attention_mask"}
    assert areal.read(without).length == 7
    # A generated token may lack its version.
    assert areal.read({"versions": [-1, -1, 5], "loss_mask": [0, 1, 1]}).of_sampled("policy_epoch") == runs_of(
        (None, 1), (5, 1)
    )


def test_areals_own_files_leave_out_where_tools_answered():
    record = areal.read(AREAL_FILE)
    assert record.request == "17/1"
    assert record.policy_epoch == runs_of((None, 4), (5, 2), (6, 2))  # 2 of the 10 tokens came from a tool


def test_megatron_stamps_prompt_and_output_in_all_its_shapes():
    for line in (MEGATRON, MEGATRON_RESPONSE):
        record = megatron.read(line)
        assert record.policy_epoch == record.kv_cache_epoch == runs_of((5, 6), (6, 3))
        assert record.sampled == ((4, 9),)
        assert (record.admission_epoch, record.completion_epoch, record.num_evictions) == (5, 6, 0)
        known = ("kv_cache_epoch", "admission_epoch", "completion_epoch", "num_evictions")
        assert unknown_besides(record, *known)
    record = megatron.read(MEGATRON_CHAT)
    assert (record.kv_cache_epoch, record.num_evictions) == (runs_of((6, 9)), 2)
    ledger = {"policy_epoch": [[0, 5]], "kv_cache_epoch": [[0, 5]], "num_evictions": 0, "prompt_length": 4, "length": 9}
    assert megatron.read(ledger).sampled == ((4, 9),)


def test_megatrons_turns_are_merged_each_token_once():
    """Of the second turn's 7 tokens the first 4 were there already, the fifth is a tool's, and 2 were sampled."""
    first, second = megatron.read_turns(MEGATRON_ROLLOUT, "r")
    assert (first.length, first.sampled, first.num_evictions) == (4, ((2, 4),), 1)
    assert (second.length, second.sampled, second.num_evictions) == (7, ((5, 7),), 2)
    record = megatron.read(MEGATRON_ROLLOUT, "r")
    assert record.sampled == ((2, 4), (5, 7))
    assert record.of_sampled("policy_epoch") == runs_of((5, 2), (6, 2))
    assert record.of_sampled("kv_cache_epoch") == runs_of((6, 4))
    assert (record.num_evictions, record.admission_epoch, record.completion_epoch) == (3, 5, 6)


def test_a_stamp_behind_a_cut_stop_string_counts_for_the_completion_alone():
    record = megatron.read(changed(MEGATRON_RESPONSE, policy_epoch=[[0, 5], [11, 6]], kv_cache_epoch=[[0, 5], [11, 6]]))
    assert record.policy_epoch == runs_of((5, 9))
    assert record.completion_epoch == 6


def test_megatron_without_an_epoch_set_stamps_nothing():
    record = megatron.read(changed(MEGATRON_RESPONSE, policy_epoch=None, kv_cache_epoch=None))
    assert record.num_sampled == 5
    assert unknown_besides(record, "num_evictions")
    assert measure(consume(6, [record]))["policy_coverage"] == 0


def test_verl_is_certain_of_tokens_when_all_calls_ran_on_one_version():
    record = verl.read(VERL)
    assert record.policy_epoch == runs_of((None, 4), (5, 5))
    assert (record.admission_epoch, record.completion_epoch, record.status) == (5, 5, "finished")
    assert unknown_besides(record, "admission_epoch", "completion_epoch")


def test_verls_two_versions_bound_tokens_that_have_none_of_their_own():
    record = verl.read(VERL_OUTPUT)
    assert record.policy_epoch == runs_of((None, 5))
    assert (record.admission_epoch, record.completion_epoch) == (3, 5)
    values = measure(consume(6, [record]))
    assert values["policy_coverage"] == 0
    assert values["mean_completion_gap"] == 1
    assert "mean_policy_staleness" not in values


def test_verls_response_mask_says_what_was_sampled():
    record = verl.read({**VERL, "response_mask": [1, 1, 0, 0, 1], "uid": "a", "id": 3})
    assert (record.request, record.sampled) == (3, ((4, 6), (8, 9)))
    assert record.policy_epoch == runs_of((None, 4), (5, 2), (None, 2), (5, 1))
    assert verl.read(changed(VERL, status="failure")).status == "failed"
    nobody_knows = verl.read(changed(VERL, min_global_steps=None, max_global_steps=None))
    assert nobody_knows.policy_epoch.stamped == 0


@given(st.lists(st.integers(0, 4), max_size=12).map(sorted), st.integers(0, 5))
def test_the_same_epochs_come_out_of_every_shape(epochs, prompt):
    """Written token by token, as spans, and as boundaries."""
    runs = EpochRuns.from_tokens(epochs)
    spans = [{"version": str(epoch), "start": start, "end": stop} for start, stop, epoch in runs.spans()]
    ids, length = list(range(len(epochs))), prompt + len(epochs)
    boundaries = [[0, epochs[0]], *([prompt + start, epoch] for start, epoch in runs.runs[1:])] if epochs else None
    found = [
        sglang.read({"output_ids": ids, "meta_info": {"prompt_tokens": prompt, "weight_versions": spans}}),
        vllm.read({"token_ids": ids, "prompt_length": prompt, "weight_versions": spans}),
        areal.read({"output_tokens": ids, "prompt_length": prompt, "output_versions": epochs}),
        areal.read(
            {"prompt_len": prompt, "version_rle": [[epoch, stop - start] for start, stop, epoch in runs.spans()]}
        ),
        areal.read({"versions": [-1] * prompt + epochs}),
        megatron.read({"policy_epoch": boundaries, "prompt_length": prompt, "length": length}),
    ]
    for record in found:
        assert record.of_sampled("policy_epoch") == runs
        assert record.length == length


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_the_shape_is_told_from_the_first_line(tmp_path, name):
    run = read_any(file_of(tmp_path, EVERY[name], changed(EVERY[name], id="another")))
    assert run.header["backend"] == SYSTEM[name.split("_")[0]]
    assert [sequence.index for sequence in run.sequences] == [0, 1]
    assert run.sequences[1].record.request == "another"
    assert all(sequence.length == sequence.record.length for sequence in run.sequences)
    assert (run.steps, run.updates, run.bad_lines) == ([], [], 0)
    texts = {"SGLANG": " a sea of light", "VLLM": " the tide", "MEGATRON": " a wave", "AREAL_FILE": "The sea is deep."}
    found = texts.get(name, texts.get(name.split("_")[0], ""))
    assert run.sequences[0].text == ("" if name in ("MEGATRON_RESPONSE", "MEGATRON_ROLLOUT") else found)


def test_what_a_training_loop_adds_is_read(tmp_path):
    lines = [
        {
            **AREAL,
            "id": "a",
            "reward": 1,
            "step": 6,
            "text": " a b",
            "prompt": "P",
            "tokens": ["v", "w", "x", "y", "z"],
        },
        {**AREAL, "rid": "b", "reward": None, "step": 7},
        {**AREAL, "request_id": "c", "tokens": ["v"]},
        {**AREAL, "index": 12, "reward": -0.5, "step": 6},
        AREAL,
    ]
    run = read_any(file_of(tmp_path, *lines))
    assert [sequence.record.request for sequence in run.sequences] == ["a", "b", "c", 12, 4]
    assert [sequence.reward for sequence in run.sequences] == [1.0, None, None, -0.5, None]
    assert run.steps == [Step(6, (0, 3)), Step(7, (1,))]
    first, *_, last = run.sequences
    assert (first.text, first.prompt, first.tokens, first.prompt_length) == (" a b", "P", ["v", "w", "x", "y", "z"], 4)
    assert run.sequences[2].tokens == last.tokens == []
    assert [sequence.reward for sequence in read_any(file_of(tmp_path, AREAL_BATCH)).sequences] == [0.5]


def test_a_run_folder_of_ours_is_read_as_ever(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.header(model="tiny", backend="megatron", mode="direct", epoch=0)
        writer.sequence(SequenceRecord(index=0, prompt="p", error="refused"))
    for path in (tmp_path, tmp_path / "run.jsonl"):
        run = read_any(path)
        assert (run.header["model"], run.sequences[0].error) == ("tiny", "refused")
    (tmp_path / "run.jsonl").write_text('{"kind": "sequence"}\n')
    with pytest.raises(
        ValueError, match=r"^[^,]*run\.jsonl, line 1, kind: expected 'run' on the first line, got 'sequence'$"
    ):
        read_any(tmp_path / "run.jsonl")


def test_a_file_that_is_cut_in_its_last_line_keeps_the_others(tmp_path):
    path = file_of(tmp_path, AREAL, "", json.dumps(AREAL)[:-9])
    run = read_any(path)
    assert (len(run.sequences), run.bad_lines) == (1, 1)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert read_any(path).bad_lines == 1


def test_labels_are_told_for_a_whole_file(tmp_path):
    line = changed(SGLANG, meta_info__weight_versions=[{"version": "step-12", "start": 0, "end": 7}])
    run = read_any(file_of(tmp_path, line), versions={"step-12": 12})
    assert run.sequences[0].generated_policy == runs_of((12, 7))


ROLLOUT = MEGATRON_ROLLOUT
WRONG = {
    "another system's line": (
        [SGLANG, AREAL],
        "line 2, output_versions: expected SGLang's meta_info.weight_versions, found AReaL's output_versions",
    ),
    "a line of ours": ([AREAL, {"kind": "step"}], "line 2, kind: expected AReaL's output_versions or "),
    "no field of the shape": ([AREAL, {"a": 1, "b": 2}], "line 2, output_versions: missing; expected AReaL's "),
    "an unknown shape": (
        [{"prompt": "a", "score": 1}],
        (
            "line 1, keys: expected a run folder's line (kind) or one with SGLang's meta_info.weight_versions, "
            "vLLM's weight_versions, AReaL's output_versions or versions or version_rle, Megatron's policy_epoch, "
            "verl's min_global_steps; got prompt, score"
        ),
    ),
    "no object": (["[1, 2]"], "line 1, keys: expected a JSON object, got [1, 2]"),
    "an empty file": ([], "line 1: the file is empty"),
    "nothing whole": (['{"output_ver'], "line 1: no line is whole JSON, expected one object a line"),
    "the same id twice": (
        [{**AREAL, "id": "a"}, {**AREAL, "id": "b"}, {**AREAL, "id": "a"}],
        "line 3, id: 'a' is on line 1 already; a rollout counts once",
    ),
    "an id that is none": ([{**AREAL, "id": [1]}], "line 1, id: expected a string or an integer, got [1]"),
    "a reward that is NaN": (
        [json.dumps({**AREAL, "reward": float("nan")})],
        "line 1, reward: expected a finite number, got nan",
    ),
    "a reward in words": ([{**AREAL, "reward": "good"}], "line 1, reward: expected a finite number, got 'good'"),
    "a step that is none": ([{**AREAL, "step": -1}], "line 1, step: expected an integer of 0 or more, got -1"),
    "a step older than an epoch": (
        [AREAL, {**AREAL, "id": "b", "step": 4}],
        "line 2, step: 4 is older than policy_epoch 5 of token 6",
    ),
    "a step older than the completion": (
        [{**VERL_OUTPUT, "step": 4}],
        "line 1, step: 4 is older than completion_epoch 5",
    ),
    "epochs that fall, in tokens": (
        [changed(AREAL, output_versions=[3, 3, 5, 4, 5])],
        "line 1, output_versions[3]: version falls from 5 to 4",
    ),
    "epochs that fall, in a batch": (
        [changed(AREAL_BATCH, versions=[[-1, -1, 6, 6, -1, -1, 5, 0, 0]])],
        "line 1, versions[6]: version falls from 6 to 5",
    ),
    "epochs that fall, in runs": (
        [changed(AREAL_FILE, version_rle=[[6, 2], [5, 2]])],
        "line 1, version_rle[1]: version falls from 6 to 5",
    ),
    "epochs that fall, in spans": (
        [
            changed(
                SGLANG,
                meta_info__weight_versions=[
                    {"version": "5", "start": 0, "end": 1},
                    {"version": "4", "start": 1, "end": 2},
                ],
            )
        ],
        "line 1, meta_info.weight_versions[1].version: version falls from 5 to 4",
    ),
    "epochs that fall, in boundaries": (
        [changed(MEGATRON_RESPONSE, policy_epoch=[[0, 6], [5, 5]])],
        "line 1, policy_epoch[1]: epoch falls from 6 to 5",
    ),
    "spans that overlap": (
        [
            changed(
                SGLANG,
                meta_info__weight_versions=[
                    {"version": "3", "start": 0, "end": 4},
                    {"version": "4", "start": 3, "end": 7},
                ],
            )
        ],
        "line 1, meta_info.weight_versions[1].start: 3 lies within the span before it, which ends at 4",
    ),
    "a span past the end": (
        [changed(VLLM, outputs=[{**VLLM["outputs"][0], "token_ids": [1, 2]}])],
        "line 1, outputs[0].weight_versions[1].end: 3 is past the last of 2 tokens",
    ),
    "a span that ends before it starts": (
        [{"weight_versions": [{"version": "3", "start": 4, "end": 2}]}],
        "line 1, weight_versions[0].end: 2 is before the span's start at 4",
    ),
    "a span without its end": (
        [{"weight_versions": [{"version": "3", "start": 0}]}],
        "line 1, weight_versions[0].end: expected an integer of 0 or more, got None",
    ),
    "a version a call, and no spans": (
        [{"weight_versions": ["3", "5"]}],
        "line 1, weight_versions[0]: expected an object with version, start and end, got '3'",
    ),
    "a version that is a label": (
        [{"weight_versions": [{"version": "default", "start": 0, "end": 2}]}],
        "line 1, weight_versions[0].version: expected the number of a checkpoint, got 'default'; versions={label: ",
    ),
    "a version that is no integer": (
        [changed(AREAL, output_versions=[3, 3, 5, "v5", 5])],
        "line 1, output_versions[3]: expected an integer of 0 or more, or -1, got 'v5'",
    ),
    "more completions than one": (
        [changed(VLLM, outputs=VLLM["outputs"] * 2)],
        "line 1, outputs: expected one completion a line, got 2",
    ),
    "versions for other tokens": (
        [changed(AREAL, output_versions=[3, 3])],
        "line 1, output_versions: 2 versions for 5 output tokens",
    ),
    "a mask for other tokens": (
        [changed(AREAL_BATCH, loss_mask=[[0, 1]])],
        "line 1, versions: 9 versions for a loss_mask of 2 tokens",
    ),
    "generated padding": (
        [changed(AREAL_BATCH, attention_mask=[[1, 1, 1, 1, 0, 0, 0, 0, 0]])],
        "line 1, loss_mask: token 6 lies behind the 4 tokens of attention_mask",
    ),
    "a batch of several": (
        [changed(AREAL_BATCH, versions=[[5], [5]])],
        "line 1, versions: expected a batch of one trajectory a line, got 2",
    ),
    "more runs than tokens": (
        [changed(AREAL_FILE, seqlen=7)],
        "line 1, version_rle: 4 tokens after a prompt of 4 are more than seqlen 7",
    ),
    "KV older than its policy": (
        [changed(MEGATRON_RESPONSE, kv_cache_epoch=[[0, 5], [8, 6]])],
        "line 1, kv_cache_epoch: token 6 of request 0: KV epoch 5 is older than its policy epoch 6",
    ),
    "KV older than its policy, in a turn": (
        [changed(ROLLOUT, kv_cache_epoch=[[[0, 5]], [[0, 5], [6, 6]]])],
        "line 1, kv_cache_epoch[1]: token 5 of request 0: KV epoch 5 is older than its policy epoch 6",
    ),
    "boundaries that go backwards": (
        [changed(MEGATRON_RESPONSE, policy_epoch=[[0, 5], [6, 6], [3, 7]])],
        "line 1, policy_epoch: start of boundary 2 goes backwards, from 6 to 3",
    ),
    "boundaries that begin late": (
        [changed(MEGATRON_RESPONSE, policy_epoch=[[2, 5]])],
        "line 1, policy_epoch: the first boundary must start at token 0, got 2",
    ),
    "an epoch in words": (
        [changed(MEGATRON_RESPONSE, policy_epoch=[[0, "5"]])],
        "line 1, policy_epoch: epoch of boundary 0 must be an integer, got '5'",
    ),
    "stamps without an end": (
        [{"policy_epoch": [[0, 5]], "prompt_length": 4}],
        "line 1, generation_token_ids: missing, and Megatron's stamps do not say where they end",
    ),
    "a prompt longer than the whole": (
        [changed(MEGATRON_RESPONSE, prompt_length=10)],
        "line 1, prompt_length: 10 is more than the sequence's 9 tokens",
    ),
    "a rollout without turns": (
        [changed(ROLLOUT, trajectory=[])],
        "line 1, trajectory: a rollout without a turn has failed",
    ),
    "turns without stamps": (
        [changed(ROLLOUT, policy_epoch=[[[0, 5]]])],
        "line 1, policy_epoch: 1 turns, trajectory has 2",
    ),
    "turns that shrink": (
        [changed(ROLLOUT, trajectory=[[1, 2, 3, 4], [1, 2]])],
        "line 1, trajectory[1]: 2 tokens, fewer than the 4 of the turn before it",
    ),
    "a turn with a mask for other tokens": (
        [changed(ROLLOUT, generation_mask=[[False, True], [True] * 7])],
        "line 1, generation_mask[0]: expected one run of true values up to the last of 4",
    ),
    "a turn whose prompt lacks the one before": (
        [changed(ROLLOUT, generation_mask=[[False, False, True, True], [False] * 3 + [True] * 4])],
        "line 1, generation_mask[1]: samples from token 3 on, and the turn before it has 4 tokens",
    ),
    "a newest version below the oldest": (
        [changed(VERL, max_global_steps=4)],
        "line 1, max_global_steps: 4 is below min_global_steps 5",
    ),
    "a trajectory of unknown length": (
        [{"min_global_steps": 3, "max_global_steps": 5}],
        "line 1, response_len: missing, and neither token_ids nor response_mask says how many tokens there are",
    ),
    "a response mask for other tokens": (
        [{**VERL, "response_mask": [1]}],
        "line 1, response_mask: 1 entries for 5 tokens",
    ),
}


@pytest.mark.parametrize(("lines", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_named_with_file_line_and_field(tmp_path, lines, message):
    path = file_of(tmp_path, *lines)
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}, {message}")) as error:
        read_any(path)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no\.jsonl: cannot be read: No such file or directory$"):
        read_any(tmp_path / "no.jsonl")


# --- whatever else a file may hold ------------------------------------------------------------------------------------

JUNK = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        3,
        10**30,
        2.5,
        float("nan"),
        "",
        "x",
        "3",
        [],
        [1],
        [[0, 3]],
        [[0]],
        [None],
        {},
        {"start": 0},
    ]
)


@st.composite
def broken(draw):
    """A line with one of its values, however deep, replaced or left out."""
    line = copy.deepcopy(draw(st.sampled_from(list(EVERY.values()))))
    inner = line
    while True:
        key = draw(st.sampled_from(list(inner) if isinstance(inner, dict) else range(len(inner))))
        if isinstance(inner[key], dict | list) and inner[key] and draw(st.booleans()):
            inner = inner[key]
            continue
        if draw(st.integers(0, 4)) == 0:
            del inner[key]
        else:
            inner[key] = draw(JUNK)
        return line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


@settings(max_examples=600)
@given(broken())
def test_a_broken_line_is_read_or_refused_in_one_line(folder, line):
    path = file_of(folder, line)
    try:
        (sequence,) = read_any(path).sequences
    except ValueError as error:
        said = str(error)
    else:
        consume(10**18, [sequence.rollout()])
        return
    assert said.startswith(f"{path}, line 1, ")
    assert "\n" not in said


def test_every_shape_has_a_line_here():
    assert set(SYSTEM.values()) == {shape.system for shape in SHAPES}
    for shape in SHAPES:
        lines = [line for name, line in EVERY.items() if SYSTEM[name.split("_")[0]] == shape.system]
        assert {shape.found_in(line) for line in lines} - {None}
