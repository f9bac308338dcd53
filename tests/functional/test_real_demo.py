"""`genref demo` with the real model, as `make demo` runs it: answers, updates with an effect, and transformers as witness."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference_impl.models.catalog import find_model
from reference_impl.staleness.runs import read_run


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [Path(sys.executable).with_name("genref"), "demo", "--run-folder", folder],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder, read_run(folder)


@pytest.fixture(scope="module")
def greedy():
    """(prompt ids, number of tokens) -> transformers' greedy continuation with the first checkpoint."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(find_model("smollm2").folder, dtype=torch.float32).eval()

    def continue_(prompt: list[int], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=2,
        )
        return out[0, len(prompt) :].tolist()

    return continue_


def test_answers_are_real(demo):
    """The capital of France is Paris, eight sequences finish, and the output says where the page is."""
    printed, folder, run = demo
    assert "The capital of France is Paris." in run.sequences[0].text
    assert [sequence.error for sequence in run.sequences] == [None] * 8
    assert f"report: {folder}/report.html" in printed
    assert (folder / "report.html").stat().st_size > 1_000_000  # Plotly is inside


def test_two_updates_fall_within_sequences(demo):
    """At least two sequences carry two or more policy epochs."""
    _, _, run = demo
    assert [update["epoch"] for update in run.updates] == [1, 2]
    assert sum(len(sequence.generated_policy.runs) > 1 for sequence in run.sequences) >= 2


def test_tokens_before_the_first_update_are_transformers(demo, greedy):
    """Token for token, in every sequence."""
    _, _, run = demo
    for sequence in run.sequences:
        first = next(stop for _, stop, epoch in sequence.generated_policy.spans() if epoch == 0)
        assert sequence.token_ids[:first] == greedy(sequence.prompt_token_ids, first)


def test_the_updates_have_an_effect(demo, greedy):
    """What the other checkpoints say is not what the first would have gone on to say."""
    _, _, run = demo
    changed = [sequence for sequence in run.sequences if len(sequence.generated_policy.runs) > 1]
    same = [greedy(sequence.prompt_token_ids, len(sequence.token_ids)) == sequence.token_ids for sequence in changed]
    assert same.count(False) >= len(changed) / 2
