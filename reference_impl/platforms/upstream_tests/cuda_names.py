"""What upstream's tests ask of `torch.cuda` beyond what its engine asks: device strings, counts, seeds, memory figures.

The engine passes `torch.cuda.current_device()` on as a device, and the platform answers that. Its tests also write
`device="cuda"` and `.to("cuda:0")`, read memory figures and seed generators, as only code that is sure of a GPU does.
"""

import contextlib
import gc
import sys
from collections.abc import Callable
from threading import Thread
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reference_impl.platforms.cpu import CpuStream
from reference_impl.platforms.seams import Seam, install

# Bytes of a device that there is not, half of them free: little enough to keep a test that fills one from filling the host.
MEMORY = 16 << 30


class MissingOnCpuError(RuntimeError):
    """Something that a GPU has and a CPU does not; its message begins with what."""


def is_test(module: dict[str, Any]) -> bool:
    """Whether these are the globals of one of upstream's test modules."""
    return "/tests/unit_tests/" in str(module.get("__file__"))


def on_cpu(value: Any) -> Any:
    """The CPU for every spelling of a CUDA device, and anything else as it is."""
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


def bytes_of_live_tensors() -> int:
    """The memory of every tensor that Python knows, each storage once; a packed one shows none, and upstream makes none."""
    tensors = (each for each in gc.get_objects() if issubclass(type(each), torch.Tensor))
    storages = (each.untyped_storage() for each in tensors if each.layout is torch.strided)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class CudaIsCpu(TorchFunctionMode):
    """Takes every device named CUDA for the CPU, and pinned memory for memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*(on_cpu(value) for value in args), **kwargs)


def _refused(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise MissingOnCpuError(what)

    return refuse


def _answer(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: value


def _in_threads_too(original: Callable[[Thread], None]) -> Callable[[Thread], None]:
    def run(thread: Thread) -> None:
        with CudaIsCpu():  # a mode is of one thread
            original(thread)

    return run


def _to_tests(value: Any, bodies: bool = True) -> Callable[[Any], Any]:
    """Answer upstream's tests, which decide by it whether to run, and leave everybody else the true answer.

    Without `bodies`, a test that asks within its own body gets the true answer too: it does less without a GPU.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            asking = sys._getframe(1)
            told = is_test(asking.f_globals) and (bodies or not asking.f_code.co_name.startswith("test_"))
            return value if told else original(*args, **kwargs)

        return answer

    return make


def _with_gloo(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(backend: str | None = None, **kwargs: Any) -> Any:
        return original("gloo", **kwargs)

    return init_process_group


CONTROLLER = "megatron.core.inference.text_generation_controllers.text_generation_controller"


def _in_pytorch(name: str) -> Callable[[Any], Any]:
    """Upstream's own plain version of one of its Triton kernels; its tests hold the two against each other."""

    def make(original: Any) -> Any:
        from megatron.core.inference.text_generation_controllers import mtp_utils_pytorch

        return getattr(mtp_utils_pytorch, name)

    return make


PROPERTIES = SimpleNamespace(total_memory=MEMORY, major=9, minor=0, name="cpu", multi_processor_count=1)

ANSWERS: dict[str, Callable[[Any], Any]] = {
    "torch.cuda:device_count": _answer(1),
    "torch.cuda:set_device": _answer(None),
    "torch.cuda:manual_seed": _answer(None),
    "torch.cuda:manual_seed_all": _answer(None),
    **{
        f"{module}:{name}": make
        for module in ("torch.cuda", "torch.cuda.random")
        for name, make in {
            "get_rng_state": lambda original: lambda *args, **kwargs: torch.get_rng_state(),
            "set_rng_state": lambda original: lambda state, *args, **kwargs: torch.set_rng_state(state),
        }.items()
    },
    "torch.cuda:empty_cache": _answer(None),
    "torch.cuda.memory:empty_cache": _answer(None),
    "torch.cuda:mem_get_info": _answer((MEMORY // 2, MEMORY)),
    "torch.cuda:memory_allocated": lambda original: lambda *args, **kwargs: bytes_of_live_tensors(),
    "torch.cuda:current_stream": lambda original: lambda *args, **kwargs: CpuStream(),
    "torch.cuda:set_stream": _answer(None),
    "torch.cuda:graph_pool_handle": _answer((0, 0)),
    "torch.cuda:max_memory_allocated": _answer(0),
    "torch.cuda:reset_peak_memory_stats": _answer(None),
    "torch.cuda:memory_snapshot": lambda original: lambda *args, **kwargs: [],
    "torch.cuda:get_device_properties": _answer(PROPERTIES),
    "torch.cuda:get_device_capability": _answer((9, 0)),
    "torch.cuda:CUDAGraph": lambda original: _refused("CUDA graph"),
    "torch.distributed:init_process_group": _with_gloo,
    "threading:Thread.run": _in_threads_too,
    "torch:Tensor.cuda": lambda original: lambda self, *args, **kwargs: self,
    **{
        f"{CONTROLLER}:{name}": _in_pytorch(name)
        for name in ("verify_speculative_tokens", "prepare_next_forward_pass", "mamba_state_selective_copy")
    },
    "torch.cuda:is_available": _to_tests(True, bodies=False),
    "megatron.core.utils:is_fa_min_version": _to_tests(True),
}


def seams() -> list[Seam]:
    """The answers as seams."""
    return [Seam(target.rpartition(":")[2], target, "", make) for target, make in ANSWERS.items()]


@contextlib.contextmanager
def answered():
    """All answers, for the length of a `with` block."""
    undo = install(seams())
    try:
        with CudaIsCpu():
            yield
    finally:
        undo()
