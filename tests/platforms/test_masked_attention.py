"""Windows, sinks, scales and several tokens a step, each held to sums written out number by number."""

import math
from types import SimpleNamespace

import pytest
import torch

from reference_impl.platforms import attention, cpu, cuda, masked_attention


def layer(window_size=None, softmax_scale=None):
    """What is read of one of Megatron's attention layers."""
    config = SimpleNamespace(window_size=window_size, window_attn_skip_freq=None)
    return SimpleNamespace(config=config, layer_number=1, softmax_scale=softmax_scale)


def by_hand(query, keys, values, scale, sink=None):
    """One head's answer to one query over the keys that it sees, in Python's own numbers."""
    weights = [math.exp(scale * sum(a * b for a, b in zip(query, key, strict=True))) for key in keys]
    total = sum(weights) + (math.exp(sink) if sink is not None else 0.0)
    width = len(values[0])
    return [sum(w * value[d] for w, value in zip(weights, values, strict=True)) / total for d in range(width)]


@pytest.fixture
def cache():
    """Two KV heads over five tokens, and two queries of four heads, which are the last two tokens."""
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(5, 2, 3, generator=generator) for _ in range(2))
    return torch.randn(2, 4, 3, generator=generator), k, v


@pytest.mark.parametrize("window", [None, 0, 1, 3])
@pytest.mark.parametrize("scale", [None, 0.25])
def test_one_request_is_the_sum_by_hand(cache, window, scale):
    """Token 3 sees tokens 3 - window to 3, token 4 sees 4 - window to 4; heads 0 and 1 share the first KV head."""
    q, k, v = cache
    got, _ = masked_attention.attention_of(q, k, v, window, scale)
    for row, position in enumerate((3, 4)):
        first = 0 if window is None else max(position - window, 0)
        for head in range(4):
            keys, values = (each[first : position + 1, head // 2].tolist() for each in (k, v))
            expected = by_hand(q[row, head].tolist(), keys, values, scale or 3**-0.5)
            assert got[row, head].tolist() == pytest.approx(expected, abs=1e-5)


def paged(q, k, v, size=2):
    """The five tokens in blocks of two, in the order 2, 0, 1, beside a block that belongs to nobody."""
    blocks = torch.full((4, size, *k.shape[1:]), float("nan")), torch.full((4, size, *v.shape[1:]), float("nan"))
    for position in range(k.shape[0]):
        for cached, tokens in zip(blocks, (k, v), strict=True):
            cached[[2, 0, 1][position // size], position % size] = tokens[position]
    return q[:, None], *blocks, torch.tensor([[2, 0, 1]])


def attend(layer, q, k, v, table, decode, softmax_offset=None):
    """The seam's attention as Megatron calls it for one request with two new tokens of five."""
    lengths = (2, 5, torch.tensor([0, 2]), torch.tensor([0, 5]), torch.tensor([5]))
    return cpu.paged_attention(None)(layer, q, k, v, *lengths, table, decode, softmax_offset=softmax_offset)[:, 0]


@pytest.mark.parametrize("decode", [False, True])
def test_a_window_over_blocks(cache, decode):
    """Upstream's window (1, 0) is the token itself and one before it, in a prefill and in a decode step alike."""
    got = attend(layer(window_size=(1, 0)), *paged(*cache), decode)
    assert torch.allclose(got, masked_attention.attention_of(*cache, window=1)[0])
    assert not torch.allclose(got, masked_attention.attention_of(*cache)[0], atol=1e-3)


def test_sinks_over_blocks(cache):
    """A sink is a logit that takes part in the softmax and has no value; each head has its own."""
    q, k, v = cache
    sinks = [0.5, -1.0, 2.0, 0.0]
    got = attend(layer(), *paged(*cache), True, softmax_offset=torch.tensor(sinks))
    for row, seen in enumerate((4, 5)):
        for head, sink in enumerate(sinks):
            keys, values = (each[:seen, head // 2].tolist() for each in (k, v))
            expected = by_hand(q[row, head].tolist(), keys, values, 3**-0.5, sink)
            assert got[row, head].tolist() == pytest.approx(expected, abs=1e-5)


def test_several_tokens_a_decode_step_are_causal(cache):
    """A speculative step gives two rows to one request; the first does not see the second."""
    got = attend(layer(), *paged(*cache), True)
    q, k, v = cache
    assert torch.allclose(got[0], masked_attention.attention_of(q[:1], k[:4], v[:4])[0][0])
    assert torch.allclose(got[1], masked_attention.attention_of(q[1:], k, v)[0][0])


def test_plain_steps_take_the_plain_way(cache, monkeypatch):
    """Causal attention with one token a request stays one batched call."""
    called = []
    monkeypatch.setattr(attention, "decode_attention", lambda *args: called.append(args) or args[0])
    q, k, v, table = paged(*cache)
    lengths = (1, 5, torch.tensor([0, 1]), torch.tensor([0, 5]), torch.tensor([5]))
    cpu.paged_attention(None)(layer(), q[:1], k, v, *lengths, table, True)
    assert len(called) == 1


def test_cuda_without_flash_attention_takes_the_same_ways():
    """A window is not ignored on a GPU either."""
    (seam,) = (seam for seam in cuda.ATTENTION_SEAMS if seam.name == "paged_attention")
    assert seam.make(None) is cpu.paged_attention(None) is attention.flash_decode_and_prefill


def test_a_window_without_a_left_edge_is_none():
    """Upstream writes -1 for no edge, and a layer may be left out by its number."""
    assert masked_attention.window_of(layer(window_size=(-1, 0))) is None
    every_second = layer(window_size=(4, 0))
    every_second.config.window_attn_skip_freq = 2
    assert masked_attention.window_of(every_second) == 4
    every_second.layer_number = 2
    assert masked_attention.window_of(every_second) is None
