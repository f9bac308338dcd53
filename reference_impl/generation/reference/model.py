"""The forward pass of a Llama over a paged cache: one step's tokens in, hidden states of the chosen rows out.

Queries, keys and values of one KV head lie side by side, as Megatron fuses them, so that the queries that share a head are
found by a view and its keys are never repeated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from reference_impl.generation.reference.batch import MASK_LIMIT, Attending, Batch, mask_for
from reference_impl.generation.reference.kv import KVCache
from reference_impl.generation.reference.weights import Weights
from reference_impl.models.llama import LlamaShape
from reference_impl.platforms.packed import product, product_added


class Rope:
    """Rotary embedding: cosines and signed sines [positions, head size] of every position that can come up."""

    def __init__(self, shape: LlamaShape, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        angles = torch.arange(positions, dtype=torch.float32)[:, None] / shape.rope_theta**half
        self.cos = torch.cat([angles.cos(), angles.cos()], -1).to(device, dtype)
        self.sin = torch.cat([-angles.sin(), angles.sin()], -1).to(device, dtype)


def forward(weights: Weights, cache: KVCache, rope: Rope, batch: Batch, rows: Tensor) -> Tensor:
    """Write the step's keys and values into the cache; normalised hidden states [rows, hidden] of the tokens at `rows`."""
    shape = weights.shape
    groups, dim = shape.num_key_value_heads, shape.head_dim
    queries = shape.num_attention_heads // groups
    x = weights.embedding[batch.tokens]
    cos, sin = rope.cos[batch.positions][:, None, None], rope.sin[batch.positions][:, None, None]
    for number, (norm, qkv, proj, mlp_norm, fc1, fc2) in enumerate(weights.layers):
        fused = product(rms_norm(x, norm, weights), qkv).view(-1, groups, queries + 2, dim)
        turned = fused[:, :, : queries + 1]
        torch.addcmul(turned * cos, turned.roll(dim // 2, -1), sin, out=turned)
        cache.write(number, batch.slots, fused[:, :, queries:])
        attended = attention(number, fused, cache, batch, queries)
        x = product_added(attended, proj, x)
        both = product(rms_norm(x, mlp_norm, weights), fc1)
        gate, up = both.chunk(2, dim=-1)
        x = product_added(F.silu(gate).mul_(up), fc2, x)
    return rms_norm(x[rows], weights.final_norm, weights)


def rms_norm(x: Tensor, weight: Tensor, weights: Weights) -> Tensor:
    """`x` over its root mean square, times `weight`."""
    if x.device.type != "cpu" or x.dtype is not torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, weights.shape.rms_norm_eps)
    # On a CPU PyTorch's own is a dozen kernels, each a few microseconds for a decode step's few rows; these are five.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(weights.eps, length, length, value=1 / x.shape[-1]).rsqrt_()).mul_(weight)


# --- attention: the one place where kernels for a device would go -------------------------------------------------------


def attention(layer: int, fused: Tensor, cache: KVCache, batch: Batch, queries: int) -> Tensor:
    """[tokens, heads * head size] of `fused` [tokens, KV heads, queries + 2, head size], whose keys and values are cached."""
    parts, first = [], batch.decode_rows
    if batch.decode is not None:
        pieces, mask = batch.decode.pieces, batch.decode.mask
        for some in cache.portions(pieces):
            found = cache.read(layer, pieces[some])
            parts.append(decode_attention(fused[some, :, :queries], *found, None if mask is None else mask[some]))
    if batch.prefill is not None:
        own, a = fused[first:].index_select(0, (batch.prefill.rows - first).flatten()), batch.prefill
        own = own.view(a.requests, a.longest, *fused.shape[1:])
        found = (own[..., queries, :].transpose(1, 2), own[..., queries + 1, :].transpose(1, 2))
        if a.last_seen is not None:
            found = cache.read(layer, a.pieces)
        parts.append(prefill_attention(own[..., :queries, :], *found, a))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def decode_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """One query position a request: `q` [requests, KV heads, queries, head size] over [requests, KV heads, positions, head size]."""
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).reshape(len(q), -1)


def prefill_attention(q: Tensor, keys: Tensor, values: Tensor, a: Attending) -> Tensor:
    """Many query positions a request: `q` [requests, longest, KV heads, queries, head size]; padding is dropped at the end."""
    q = q.flatten(2, 3).transpose(1, 2)
    if a.last_seen is None:
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
    elif a.mask is not None:
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=a.mask, enable_gqa=True)
    else:
        step = max(1, MASK_LIMIT // (len(q) * keys.shape[2]))
        parts = []
        for at in range(0, a.longest, step):
            mask = mask_for(a.last_seen[:, at : at + step], keys.shape[2], q.dtype)
            part = q[:, :, at : at + step]
            parts.append(F.scaled_dot_product_attention(part, keys, values, attn_mask=mask, enable_gqa=True))
        out = torch.cat(parts, 2)
    return out.transpose(1, 2).flatten(0, 1).index_select(0, a.places).flatten(1)
