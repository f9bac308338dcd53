"""The CPU platform: every seam is needed, no other is, and nothing of it is left on while steps run."""

import importlib
import inspect
import subprocess
import sys

import pytest
import torch
from support.batches import prompts, recipe
from support.table_model import table_model

from reference_impl.conformance.table_model import SHAPE, chain
from reference_impl.generation.megatron.drivers import OWN_ZMQ_CONTEXT
from reference_impl.platforms import cpu
from reference_impl.platforms.megatron_import import COMPILER
from reference_impl.platforms.seams import Seam, install

SPEED = [seam for seam in cpu.SEAMS if seam.speed]
NEEDED = [seam for seam in cpu.SEAMS if not seam.speed]


def generate(**settings):
    """The whole chain once, from recipe to tokens, over offload and back: every place where a seam could be needed."""
    from reference_impl.generation.megatron.backend import MegatronGeneration

    backend = MegatronGeneration(
        recipe(length=16, max_new_tokens=3, mcore={"kv_cache_management_mode": "offload"} | settings),
        model=table_model(chain(1, 5, 6, 7)),
        shape=SHAPE,
    )
    try:
        backend.prepare_for_generation()
        backend.generate(prompts([2, 1]), greedy=True)
        backend.finish_generation()
        backend.prepare_for_generation()
        return backend.generate(prompts([2, 1]), greedy=True)["output_ids"][0, 2:].tolist()
    finally:
        if backend._driver is not None:  # stopping in order would need the seams too
            backend._driver._thread.stop()
            backend.shutdown()


@pytest.fixture
def without(monkeypatch):
    """Switch the platform on with one seam left out, for one test."""
    if not cpu.needed():
        pytest.skip("a CUDA device is here, so the platform does nothing")

    def switch(name: str) -> None:
        cpu.disable()
        monkeypatch.setattr(cpu, "SEAMS", [seam for seam in cpu.SEAMS if seam.name != name])
        cpu.enable()

    yield switch
    cpu.disable()


def test_all_seams_together_are_enough():
    """If this fails on a `torch.cuda` name, upstream needs another seam: the traceback names the line."""
    assert generate() == [5, 6, 7]
    assert generate(kv_cache_management_mode="recompute", logging_step_interval=1) == [5, 6, 7]


@pytest.mark.parametrize("seam", NEEDED, ids=lambda seam: seam.name)
def test_upstream_still_needs(seam, without):
    """Without this one seam the engine does not run. If it does, upstream has changed: delete the seam."""
    without(seam.name)
    # Events are made by any step, but with a CUDA build of torch only recorded ones look for a device.
    settings = {"logging_step_interval": 1} if seam.name == "event" else {}
    try:
        generate(**settings)
    except Exception:
        return
    pytest.fail(f"seam {seam.name}: the engine runs without it; upstream no longer needs it")


@pytest.mark.parametrize("seam", [*cpu.SEAMS, COMPILER, OWN_ZMQ_CONTEXT], ids=lambda seam: seam.name)
def test_the_line_that_needs_it_is_still_there(seam):
    """`Seam.upstream` names a module and a line of it."""
    module, _, line = seam.upstream.partition(": ")
    source = inspect.getsource(importlib.import_module(module))
    assert line in source, f"seam {seam.name}: {module} has no line {line!r} any more"


def test_speed_seams_are_these():
    """Without them everything works, only slower; their effect is what is tested below."""
    assert [seam.name for seam in SPEED] == ["token_rounder", "linear", "frozen_linear"]


def test_a_decode_step_is_not_padded():
    """One request decodes one token, not 64; upstream's own rounding pads."""
    from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext

    from reference_impl.generation.megatron.backend import MegatronGeneration

    cpu.disable()
    assert DynamicInferenceContext.TOKEN_ROUNDER == 64
    with MegatronGeneration(
        recipe(length=16, max_new_tokens=4), model=table_model(chain(1, 5)), shape=SHAPE
    ) as backend:
        padded, context = [], backend._engine.context
        for _ in backend.stream(prompts([2, 1]), greedy=True):
            padded.append(context.padded_active_token_count)
    assert padded[1:4] == [2, 1, 1]  # after the prefill of two tokens, one token a step


def test_no_function_mode_is_on_while_steps_run():
    """A `TorchFunctionMode` costs a quarter of a step; it is for construction only."""
    from torch.overrides import _get_current_function_mode_stack

    from reference_impl.generation.megatron.backend import MegatronGeneration

    model, seen = table_model(chain(1, 5)), []
    model.register_forward_pre_hook(lambda *args: seen.append(len(_get_current_function_mode_stack())))
    with MegatronGeneration(recipe(length=16, max_new_tokens=4), model=model, shape=SHAPE) as backend:
        backend.generate(prompts([2, 1]), greedy=True)
    assert seen == [0, 0, 0, 0]


def test_onednn_multiplies_as_torch_does():
    """The same product as `matmul`, and the original function where gradients are wanted."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 1, 24), torch.randn(40, 24)
    calls = []
    linear = cpu.onednn_linear(lambda *args, **kwargs: calls.append(args) or "original")
    with torch.inference_mode():
        assert torch.allclose(linear(x, weight, None), x @ weight.T, atol=1e-5)
        assert not calls
        assert linear(x.bfloat16(), weight.bfloat16(), None) == "original"
    assert linear(x, weight, None) == "original"


def test_enable_is_undone_and_twice_is_once():
    """Every name is back afterwards, whatever the order of calls."""
    if not cpu.needed():
        pytest.skip("a CUDA device is here, so the platform does nothing")
    cpu.disable()
    before = {seam.target: getattr(seam.owner, seam.attribute) for seam in cpu.SEAMS}
    with cpu.cpu_platform():
        assert cpu.enable()
        assert all(getattr(seam.owner, seam.attribute) is not before[seam.target] for seam in cpu.SEAMS)
        with cpu.cpu_platform():
            pass
        assert cpu._undo is not None
    assert {seam.target: getattr(seam.owner, seam.attribute) for seam in cpu.SEAMS} == before


def test_a_seam_that_upstream_has_lost_is_named_and_nothing_stays():
    """Installing is all or nothing."""
    original = torch.cuda.synchronize
    seams = [
        Seam("one", "torch.cuda:synchronize", "", lambda original: print),
        Seam("two", "torch.cuda:there_is_no_such_name", "", lambda original: print),
    ]
    with pytest.raises(RuntimeError, match=r"seam two: upstream has no torch\.cuda:there_is_no_such_name"):
        install(seams)
    assert torch.cuda.synchronize is original


def test_importing_the_package_changes_nothing():
    """No CUDA name is answered before a backend asks for the platform."""
    code = (
        "import torch; before = torch.cuda.current_device, torch.cuda.Event, torch.Tensor.pin_memory;"
        "import reference_impl, reference_impl.platforms.cpu, reference_impl.generation.registry, reference_impl.models.gpt;"
        "assert before == (torch.cuda.current_device, torch.cuda.Event, torch.Tensor.pin_memory);"
        "assert not torch.distributed.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
