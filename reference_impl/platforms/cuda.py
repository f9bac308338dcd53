"""The CUDA side: Megatron runs there as it is, and only needs help where flash-attn is not installed."""

from collections.abc import Callable

import torch

from reference_impl.platforms import attention
from reference_impl.platforms.seams import Seam, install

ATTENTION_SEAMS = (
    Seam(
        "flash_attention_version",
        "megatron.core.transformer.attention:is_fa_min_version",
        'megatron.core.transformer.attention: is_fa_min_version("2.7.3")',
        lambda original: lambda version, check_equality=True: True,
    ),
    Seam(
        "paged_attention",
        "megatron.core.transformer.attention:Attention.flash_decode_and_prefill",
        "megatron.core.transformer.attention: core_attn_out = self.flash_decode_and_prefill(",
        lambda original: attention.flash_decode_and_prefill,
    ),
)
_undo: Callable[[], None] | None = None


def flash_attention() -> str | None:
    """The flash-attn that Megatron would use, or `None` where there is none that is new enough."""
    from megatron.core.transformer import attention as upstream
    from megatron.core.utils import is_fa_min_version

    for name, found in (("FlashAttention 4", upstream.HAVE_FA4), ("FlashAttention 3", upstream.HAVE_FA3)):
        if found:
            return name
    try:
        return "FlashAttention 2" if is_fa_min_version("2.7.3") else None
    except Exception:  # its version is looked up in the package that is not there
        return None


def enable() -> str:
    """Make attention work; returns one line that says which attention is in use."""
    global _undo
    if found := flash_attention():
        return found
    if _undo is None:
        _undo = install(ATTENTION_SEAMS)
    return "PyTorch's, over gathered KV blocks (flash-attn is not installed)"


def prefill_needs_host(device: torch.device) -> bool:
    """Whether prefill attention reads lengths on the host, which a CUDA graph cannot capture."""
    return device.type == "cuda" and _undo is not None
