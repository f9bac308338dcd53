"""Attention over a paged KV cache for what `attention` leaves out: windows, sinks, a scale, several tokens a decode step.

Request by request, each written out as scores, mask, softmax and sum: models that need it are few, and what it computes
can be read.
"""

from typing import Any

import torch
from torch import Tensor

from reference_impl.platforms.slots import slots_of


def wanted(layer: Any, q: Tensor, seqlens_k: Tensor, is_decode_only: bool, softmax_offset: Tensor | None) -> bool:
    """Whether a call of Megatron's `Attention.flash_decode_and_prefill` asks for more than causal attention.

    `q` is [tokens, heads, dim] and `seqlens_k` [requests].
    """
    several = is_decode_only and q.shape[0] > seqlens_k.shape[0]
    scaled = getattr(layer, "softmax_scale", None) is not None
    return several or scaled or softmax_offset is not None or window_of(layer) is not None


def window_of(layer: Any) -> int | None:
    """How many earlier tokens a layer sees, or `None` for all; causal attention leaves nothing to the right."""
    from megatron.core.transformer.utils import is_layer_window_attention

    config = layer.config
    if not is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer.layer_number):
        return None
    left = config.window_size[0]
    return None if left < 0 else left


def attend(
    layer: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    seqlens_k: Tensor,
    block_table: Tensor,
    is_decode_only: bool,
    softmax_offset: Tensor | None,
) -> Tensor:
    """[tokens, heads, dim] of `q` [tokens, heads, dim] over `k` and `v` [blocks, block size, KV heads, dim].

    What a sink takes of the weights is Megatron's own sum.
    """
    from megatron.core.transformer.attention import Attention

    requests = seqlens_k.shape[0]
    each = q.shape[0] // max(requests, 1)  # a decode step gives every request equally many tokens
    ends = [each * i for i in range(requests + 1)] if is_decode_only else cu_seqlens_q.tolist()
    out, log_sums = torch.zeros_like(q), q.new_full((q.shape[1], q.shape[0]), float("inf"), dtype=torch.float32)
    for i, cached in enumerate(seqlens_k.tolist()):
        start, end = ends[i], ends[i + 1]
        if end == start or cached < end - start:  # a padding row has no cache
            continue
        slots = slots_of(block_table[i : i + 1], torch.arange(cached, device=q.device)[None], k.shape[1])[0]
        keys, values = k.flatten(0, 1)[slots], v.flatten(0, 1)[slots]
        scale = getattr(layer, "softmax_scale", None)
        out[start:end], log_sums[:, start:end] = attention_of(q[start:end], keys, values, window_of(layer), scale)
    if softmax_offset is not None:
        out = Attention._apply_sink_softmax_correction_varlen(out, log_sums, softmax_offset)
    return out


def attention_of(
    q: Tensor, k: Tensor, v: Tensor, window: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """One request: `q` [tokens, heads, dim] are its last tokens, `k` and `v` [cached, KV heads, dim] all of them.

    A token sees itself and `window` tokens before it. Returns [tokens, heads, dim] and the logarithm of each row's sum of
    exponentials [heads, tokens], from which upstream works out what a sink takes of the weights.
    """
    tokens, heads, dim = q.shape
    cached, shared = k.shape[0], heads // k.shape[1]
    keys, values = (each.repeat_interleave(shared, dim=1).float() for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * (dim**-0.5 if scale is None else scale)
    distance = torch.arange(cached - tokens, cached, device=q.device)[:, None] - torch.arange(cached, device=q.device)
    hidden = (distance < 0) if window is None else (distance < 0) | (distance > window)
    scores = scores.masked_fill(hidden, float("-inf"))
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return attended.to(q.dtype), scores.logsumexp(-1)
