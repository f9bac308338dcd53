"""On a CUDA device: the contract, the demo in bfloat16, tokens equal to the CPU's in float32, with graphs and without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.batches import prompts, recipe, response_logprobs, responses

from reference_impl.generation.registry import BACKENDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PROMPTS = ([84, 104, 101, 32, 99, 97, 112], [65, 66], list(range(40, 100)))

ON_THE_CPU = """
import json, sys
sys.path.insert(0, "tests")
from support.batches import prompts, recipe, response_logprobs, responses
from reference_impl.generation.megatron.backend import MegatronGeneration
with MegatronGeneration(recipe(length=96, max_new_tokens=24, stop_token_ids=[])) as backend:
    output = backend.generate(prompts(*json.loads(sys.argv[1])), greedy=True)
print(json.dumps([responses(output), response_logprobs(output)]))
"""


@pytest.fixture(scope="module")
def on_the_cpu():
    """The same prompts in a process that sees no CUDA device, so that the platform is on there."""
    import json

    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_CPU, json.dumps(PROMPTS)], env=hidden, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("graphs", ["none", "local"])
def test_tokens_are_the_cpus(on_the_cpu, graphs):
    """float32 on both, near-ties aside: log-probabilities within 5e-4 up to the first token that differs, if one does."""
    from reference_impl.generation.megatron.backend import MegatronGeneration

    settings = recipe(length=96, max_new_tokens=24, stop_token_ids=[], mcore={"cuda_graph_impl": graphs})
    settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"precision": "float32"})})
    with MegatronGeneration(settings) as backend:
        output = backend.generate(prompts(*PROMPTS), greedy=True)
    for got, logprobs, ids, values in zip(responses(output), response_logprobs(output), *on_the_cpu, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(got, ids, strict=True)) if a != b), len(ids))
        assert logprobs[:same] == pytest.approx(values[:same], abs=5e-4)
        # Where the two part, both must have found their token as likely as the other's.
        assert same == len(ids) or logprobs[same] == pytest.approx(values[same], abs=1e-3)


@pytest.mark.parametrize("graphs", ["none", "local"])
def test_stamps_are_exact_with_and_without_graphs(graphs):
    """Prompt 4, 3 tokens at epoch 0, change, 2 more: the policy changes at 7 and the KV cache at 6, warm-up leaves no trace."""
    from reference_impl.generation.interfaces import Progress
    from reference_impl.generation.megatron.backend import MegatronGeneration

    with MegatronGeneration(recipe(max_new_tokens=5, stop_token_ids=[], mcore={"cuda_graph_impl": graphs})) as backend:
        for event in backend.stream(prompts([1, 2, 3, 4]), greedy=True):
            if not isinstance(event, Progress):
                record = event[1]["staleness"][0]
            elif event.sampled_tokens == 3:
                backend.update_weights(None, epoch=1)
    assert record.policy_epoch.to_json() == [[0, 0], [7, 1]]
    assert record.kv_cache_epoch.to_json() == [[0, 0], [6, 1]]
    assert record.oldest_attended_kv_epoch.to_json() == [[0, None], [4, 0]]


def test_the_demo_runs_in_bfloat16(tmp_path):
    """`genref demo` on the device: answers, two updates, a report."""
    from reference_impl.staleness.runs import read_run

    done = subprocess.run(
        [str(Path(sys.executable).with_name("genref")), "demo", "--run-folder", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert len(read_run(tmp_path).updates) == 2


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_keeps_to_the_contract(name):
    """The whole conformance suite; its recipes leave the device open, so a backend takes the first GPU."""
    genref = str(Path(sys.executable).with_name("genref"))
    done = subprocess.run([genref, "conformance", "--backend", name], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_platform_does_nothing():
    """Every name is CUDA's own."""
    from reference_impl.platforms import cpu

    assert not cpu.enable()
    assert torch.cuda.current_device() == 0
