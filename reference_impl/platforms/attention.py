"""Attention over a paged KV cache in plain PyTorch, where flash-attn is not installed.

It takes the place of Megatron's `Attention.flash_decode_and_prefill` and computes the same thing. Decode steps, where
speed is decided, are one batched call without a Python loop or a host synchronisation, so CUDA graphs can capture them.
Prefills are few and large, and run request by request. What is not plain causal attention goes to `masked_attention`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_impl.platforms import masked_attention
from reference_impl.platforms.slots import gather, slots_of


def flash_decode_and_prefill(
    self,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    seqlens_k: Tensor,
    block_table: Tensor,
    is_decode_only: bool,
    softmax_offset: Tensor | None = None,
) -> Tensor:
    """Megatron's signature; `q` is [tokens, 1, heads, dim], `k` and `v` are [blocks, block size, KV heads, dim].

    Returns [tokens, 1, heads, dim].
    """
    q = q[:, 0]
    if masked_attention.wanted(self, q, seqlens_k, is_decode_only, softmax_offset):
        out = masked_attention.attend(
            self, q, k, v, cu_seqlens_q, seqlens_k, block_table, is_decode_only, softmax_offset
        )
    elif is_decode_only:
        out = decode_attention(q, k, v, seqlens_k, block_table, max_seqlen_k)
    else:
        out = prefill_attention(q, k, v, cu_seqlens_q, seqlens_k, block_table)
    return out.unsqueeze(1)


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, seqlens_k: Tensor, block_table: Tensor, max_seqlen_k: int
) -> Tensor:
    """One query token a request: `q` [requests, heads, dim] attends to that request's `seqlens_k` cached tokens."""
    requests, heads, dim = q.shape
    kv_heads = k.shape[2]
    positions = torch.arange(max_seqlen_k, device=q.device)
    # Past its end a request reads its own last token again, masked: what lies in a slot that nobody has written may be
    # NaN, and NaN times a weight of zero is NaN.
    last = (seqlens_k - 1).clamp(min=0)[:, None]
    slots = slots_of(block_table, torch.minimum(positions, last), k.shape[1])
    keys, values = gather(k, slots), gather(v, slots)
    mask = positions <= last  # a padding row of a CUDA graph has no token; it sees one all the same, for its softmax
    # The heads that share a KV head are its queries, so K and V are never repeated.
    grouped = q.view(requests, kv_heads, heads // kv_heads, dim)
    out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask[:, None, None])
    return out.reshape(requests, heads, dim)


def prefill_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, seqlens_k: Tensor, block_table: Tensor
) -> Tensor:
    """Any number of query tokens a request: `q` [tokens, heads, dim], causal from the end of each request's cache."""
    out = torch.zeros_like(q)
    ends = cu_seqlens_q.tolist()
    for i, cached in enumerate(seqlens_k.tolist()):
        start, end = ends[i], ends[i + 1]
        if end == start:
            continue
        slots = slots_of(block_table[i : i + 1], torch.arange(cached, device=q.device)[None], k.shape[1])
        queries = q[start:end].transpose(0, 1)[None]
        # Square: a whole prompt. Otherwise a later chunk, or a decode row in a mixed step: query j sees all keys
        # but the last (end - start - 1 - j).
        whole = end - start == cached
        visible = None if whole else torch.ones(end - start, cached, dtype=torch.bool, device=q.device)
        if visible is not None:
            visible = visible.tril(cached - (end - start))
        attended = F.scaled_dot_product_attention(
            queries, gather(k, slots), gather(v, slots), attn_mask=visible, is_causal=whole, enable_gqa=True
        )
        out[start:end] = attended[0].transpose(0, 1)
    return out
