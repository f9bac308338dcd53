"""The CPU platform: answers the CUDA names that Megatron Core's dynamic engine touches, on a machine without CUDA.

Nothing is emulated. Megatron's scheduler, cache, controller and engine run as they are; they only ask `torch.cuda` for a
device, streams and events, which on a CPU have simple true answers: the device is the CPU, and work is done when the call
returns. `enable()` is called by the backend, never by an import, and does nothing where CUDA is at hand.
"""

import contextlib
import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from reference_impl.platforms import attention
from reference_impl.platforms.packed import packed_copy, packed_product
from reference_impl.platforms.seams import Seam, install

SEAMS: list[Seam] = []
_undo: Callable[[], None] | None = None


def needed() -> bool:
    """True where there is no CUDA device, so that the platform has something to do."""
    return not torch.cuda.is_available()


def enable() -> bool:
    """Put every seam in place; True if the platform is on afterwards. Twice is once; on a CUDA machine it does nothing."""
    global _undo
    if _undo is None and needed():
        _undo = install(SEAMS)
    return _undo is not None


def disable() -> None:
    """Take every seam out again. Engines that were built on the platform must not be used afterwards."""
    global _undo
    if _undo is not None:
        _undo()
        _undo = None


@contextlib.contextmanager
def cpu_platform() -> Iterator[None]:
    """The platform for the length of a `with` block; an outer `enable()` stays as it was."""
    was_on = _undo is not None
    enable()
    try:
        yield
    finally:
        if not was_on:
            disable()


def seam(target: str, upstream: str, speed: bool = False) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register a function from the original to its replacement as a seam."""

    def register(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        SEAMS.append(Seam(make.__name__, target, upstream, make, speed))
        return make

    return register


# --- the device ---------------------------------------------------------------------------------------------------


@seam(
    "torch.cuda:current_device",
    "megatron.core.inference.contexts.dynamic_context: device=torch.cuda.current_device(),",
)
def current_device(original: Any) -> Any:
    """The current device is the CPU; upstream passes it on as `device=`."""
    return lambda: torch.device("cpu")


@seam("torch.cuda:Event", "megatron.core.inference.engines.dynamic_engine: torch.cuda.Event(enable_timing=True)")
def event(original: Any) -> Any:
    """An event that has happened when it is recorded."""
    return CpuEvent


@seam(
    "torch.cuda:Stream",
    "megatron.core.inference.text_generation_controllers.text_generation_controller: torch.cuda.Stream(device=device)",
)
def stream(original: Any) -> Any:
    """A stream on which everything is already done."""
    return CpuStream


@seam("torch.cuda:synchronize", "megatron.core.inference.engines.dynamic_engine: torch.cuda.synchronize()")
def synchronize(original: Any) -> Any:
    """Nothing is in flight on a CPU."""
    return lambda device=None: None


@seam("torch.cuda:memory_stats", "megatron.core.inference.engines.dynamic_engine: torch.cuda.memory_stats()")
def memory_stats(original: Any) -> Any:
    """CUDA's allocator holds nothing here, so every statistic is 0; upstream only logs them."""
    return lambda device=None: defaultdict(int)


# --- pinned memory ------------------------------------------------------------------------------------------------


class WithoutPinning(TorchFunctionMode):
    """Drops `pin_memory=True`. On only while upstream allocates: left on, it costs about a quarter of a step."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def _allocating(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def allocate(*args: Any, **kwargs: Any) -> Any:
        with WithoutPinning():
            return original(*args, **kwargs)

    return allocate


@seam(
    "megatron.core.inference.contexts.dynamic_context:DynamicInferenceContext.initialize_all_tensors",
    "megatron.core.inference.contexts.dynamic_context: pin_memory=True",
)
def context_tensors(original: Any) -> Any:
    """The context allocates its book-keeping in pinned memory, when it is made and when `recompute` resumes."""
    return _allocating(original)


@seam(
    "megatron.core.inference.text_generation_controllers.text_generation_controller:"
    "TextGenerationController._init_dynamic_sampling_tensors",
    'megatron.core.inference.text_generation_controllers.text_generation_controller: device="cpu", pin_memory=True',
)
def controller_construction(original: Any) -> Any:
    """The controller's sampling buffers are allocated in pinned memory."""
    return _allocating(original)


@seam(
    "torch:Tensor.pin_memory",
    "megatron.core.inference.contexts.dynamic_context: ).pin_memory()",
)
def tensor_pin_memory(original: Any) -> Any:
    """The copy of an offloaded KV cache is pinned."""
    return lambda self, device=None: self


# --- kernels ------------------------------------------------------------------------------------------------------


@seam(
    "megatron.core.transformer.attention:is_fa_min_version",
    'megatron.core.transformer.attention: is_fa_min_version("2.7.3")',
)
def flash_attention_version(original: Any) -> Any:
    """Upstream asserts that flash-attn is there before it calls the function that we replace."""
    return lambda version, check_equality=True: True


@seam(
    "megatron.core.transformer.attention:Attention.flash_decode_and_prefill",
    "megatron.core.transformer.attention: core_attn_out = self.flash_decode_and_prefill(",
)
def paged_attention(original: Any) -> Any:
    """flash-attn's paged kernels have no CPU form; PyTorch's attention over gathered blocks has."""
    return attention.flash_decode_and_prefill


@seam(
    "megatron.core.inference.contexts.dynamic_context:triton_append_key_value_cache",
    "megatron.core.inference.contexts.dynamic_context: if triton_append_key_value_cache is not None",
)
def append_key_value_cache(original: Any) -> Any:
    """Without its Triton kernel, upstream writes K and V by indexing, which works anywhere."""
    return None


# --- speed --------------------------------------------------------------------------------------------------------


@seam(
    "megatron.core.inference.contexts.dynamic_context:DynamicInferenceContext.TOKEN_ROUNDER",
    "megatron.core.inference.contexts.dynamic_context: self.round_up_tokens(self.active_token_count)",
    speed=True,
)
def token_rounder(original: Any) -> Any:
    """A step is padded to 64 tokens for the sake of GPU kernels; on a CPU one decoded token would cost as much as 64."""
    return 1


@seam(
    "megatron.core.tensor_parallel.layers:linear_with_grad_accumulation_and_async_allreduce",
    "megatron.core.tensor_parallel.layers: return linear_with_grad_accumulation_and_async_allreduce(",
    speed=True,
)
def linear(original: Any) -> Any:
    """oneDNN reads the same weights as `torch.matmul`, two to three times as fast at a decode step's few rows."""
    return onednn_linear(original)


@seam(
    "megatron.core.tensor_parallel.layers:linear_with_frozen_weight",
    "megatron.core.tensor_parallel.layers: return linear_with_frozen_weight(",
    speed=True,
)
def frozen_linear(original: Any) -> Any:
    """The same for parameters that are not trained."""
    return onednn_linear(original)


def onednn_linear(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`original` where gradients are wanted or the weights are not float32; oneDNN's product otherwise."""

    @functools.wraps(original)  # upstream keeps a flag on the function, which it finds under the name that we replace
    def linear(input: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **kwargs: Any) -> Tensor:
        if torch.is_grad_enabled() or weight.dtype is not torch.float32 or kwargs.get("sequence_parallel"):
            return original(input, weight, bias, *args, **kwargs)
        return packed_product(input, packed_copy(weight) or [weight], bias)  # oneDNN takes a plain one as well

    return linear if torch.backends.mkldnn.is_available() else original


# --- what a stream and an event are on a CPU -------------------------------------------------------------------------


class CpuEvent:
    """A point in time. Work on the CPU is finished when its call returns, so every event has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: "CpuEvent") -> float:
        """Milliseconds from this event to `end`."""
        return (end.seconds - self.seconds) * 1e3

    def synchronize(self) -> None:
        """Already happened."""

    def query(self) -> bool:
        """Already happened."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Already happened."""


class CpuStream:
    """An order of work in which everything is already done."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def wait_stream(self, stream: "CpuStream") -> None:
        """Already done."""

    def wait_event(self, event: CpuEvent) -> None:
        """Already happened."""

    def synchronize(self) -> None:
        """Already done."""
