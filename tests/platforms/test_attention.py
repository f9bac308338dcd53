"""Paged attention against attention written out, one query at a time, over the tokens that a request really has."""

from types import SimpleNamespace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_impl.platforms.attention import flash_decode_and_prefill

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 8, 4
PLAIN = SimpleNamespace(config=SimpleNamespace(window_size=None, window_attn_skip_freq=None), layer_number=1)
"""What is read of one of Megatron's attention layers."""


def paged(lengths: list[int], generator: torch.Generator):
    """K and V of requests of these lengths, scattered over a cache whose other slots are NaN, and the block table."""
    tables = [-(-length // BLOCK) for length in lengths]
    order = torch.randperm(sum(tables) + 2, generator=generator)
    k = torch.full((len(order), BLOCK, KV_HEADS, DIM), float("nan"))
    v = k.clone()
    table = torch.full((len(lengths), max(tables)), -1, dtype=torch.int32)
    dense, used = [], 0
    for i, (length, blocks) in enumerate(zip(lengths, tables, strict=True)):
        table[i, :blocks] = order[used : used + blocks]
        used += blocks
        keys, values = torch.randn(2, length, KV_HEADS, DIM, generator=generator)
        for position in range(length):
            slot = int(table[i, position // BLOCK]), position % BLOCK
            k[slot], v[slot] = keys[position], values[position]
        dense.append((keys, values))
    return k, v, table, dense


def written_out(q, keys, values, visible: int):
    """One query [heads, dim] over the first `visible` tokens."""
    out = torch.empty(HEADS, DIM)
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = torch.stack([q[head] @ keys[p, group] for p in range(visible)]) / DIM**0.5
        weights = scores.softmax(0)
        out[head] = sum(weights[p] * values[p, group] for p in range(visible))
    return out


@settings(max_examples=40)
@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=4), seed=st.integers(0, 99)
)
def test_any_mixture_of_prefills_chunks_and_decodes(requests, seed):
    """Each request has some cached tokens and some new queries; NaN in unused slots reaches nobody."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [cached + new for cached, new in requests]
    k, v, table, dense = paged(lengths, generator)
    queries = [new for _, new in requests]
    q = torch.randn(sum(queries), 1, HEADS, DIM, generator=generator)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    seqlens = torch.tensor(lengths, dtype=torch.int32)
    out = flash_decode_and_prefill(
        PLAIN, q, k, v, max(queries), max(lengths), starts, None, seqlens, table, all(new == 1 for new in queries)
    )
    assert out.shape == q.shape
    row = 0
    for (cached, new), (keys, values) in zip(requests, dense, strict=True):
        for j in range(new):
            expected = written_out(q[row, 0], keys, values, cached + j + 1)
            assert torch.allclose(out[row, 0], expected, atol=1e-5)
            row += 1


def test_padding_rows_are_finite_and_disturb_nobody():
    """A graph-sized batch has rows of length 0 with an empty table."""
    generator = torch.Generator().manual_seed(0)
    k, v, table, dense = paged([5], generator)
    k, v = k.nan_to_num(), v.nan_to_num()
    q = torch.randn(3, 1, HEADS, DIM, generator=generator)
    table = torch.cat([table, torch.full((2, table.shape[1]), -1, dtype=torch.int32)])
    out = flash_decode_and_prefill(
        PLAIN,
        q,
        k,
        v,
        1,
        16,
        None,
        None,
        torch.tensor([5, 0, 0], dtype=torch.int32),
        torch.nn.functional.pad(table, (0, 4 - table.shape[1]), value=-1),
        True,
    )
    assert torch.allclose(out[0, 0], written_out(q[0, 0], *dense[0], 5), atol=1e-5)
    assert out.isfinite().all()
