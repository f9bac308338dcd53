"""Packed weights: the same numbers, bit for bit back, and never older than the parameter they stand for."""

import pytest
import torch
from support.batches import recipe

from reference_impl.platforms import packed as packed_module
from reference_impl.platforms.packed import (
    COPY,
    can_pack,
    drop_packed,
    keep_packed,
    pack,
    packed_copy,
    packed_product,
    product,
    product_added,
    unpack,
)

SIZES = [(1, 5, 3), (8, 576, 1536), (300, 64, 48)]


@pytest.mark.parametrize(("rows", "width", "out"), SIZES)
def test_the_product_is_the_matrix_product(rows, width, out):
    generator = torch.Generator().manual_seed(rows)
    x, residual = (torch.randn(rows, n, generator=generator) for n in (width, out))
    weight = torch.randn(out, width, generator=generator)
    expected = (x.double() @ weight.double().T).float()
    for form in (weight, pack(weight)):
        torch.testing.assert_close(product(x, form), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(product_added(x, form, residual), expected + residual, rtol=1e-4, atol=1e-4)


def test_a_large_weight_is_packed_in_pieces_that_give_the_same_product(monkeypatch):
    """10 rows of 8 numbers of 4 bytes, at most 3 rows a piece: 3, 3, 3 and 1."""
    monkeypatch.setattr(packed_module, "PIECE_BYTES", 3 * 8 * 4 + 31)
    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(size, generator=generator) for size in ((10, 8), (5, 8), (10,)))
    pieces = pack(weight)
    assert [piece.shape[0] for piece in pieces] == [3, 3, 3, 1]
    assert torch.equal(unpack(pieces), weight)
    torch.testing.assert_close(product(x, pieces), x @ weight.T)
    torch.testing.assert_close(packed_product(x, pieces, bias), x @ weight.T + bias)
    torch.testing.assert_close(product_added(x, pieces, bias.expand(5, 10)), x @ weight.T + bias)


@pytest.mark.parametrize(("out", "width"), [(3, 5), (960, 576), (49, 130)])
def test_unpacking_gives_every_bit_back(out, width):
    weight = torch.randn(out, width)
    assert torch.equal(unpack(pack(weight)), weight)


def test_only_float32_on_a_cpu_is_packed():
    assert can_pack(torch.ones(2, 2))
    assert not can_pack(torch.ones(2, 2, dtype=torch.bfloat16))
    assert not can_pack(torch.ones(2, 2, device="meta"))


def test_a_copy_is_used_until_its_parameter_changes():
    """Copies 3x the identity; the parameter becomes 5x, and then the product is 5x, with and without being told."""
    model = torch.nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(3 * torch.eye(4))
    keep_packed(model)
    assert packed_copy(model.weight)[0].is_mkldnn
    with torch.no_grad():
        model.weight.copy_(5 * torch.eye(4))
    assert packed_copy(model.weight) is None
    keep_packed(model)
    assert torch.equal(product(torch.eye(4), packed_copy(model.weight)), 5 * torch.eye(4))
    drop_packed(model)
    assert not hasattr(model.weight, COPY)


def test_megatrons_engine_reads_packed_copies_only_while_it_is_awake():
    from reference_impl.generation.megatron.backend import MegatronGeneration

    with MegatronGeneration(recipe(max_new_tokens=2)) as backend:
        matrices = [parameter for parameter in backend.model.parameters() if parameter.ndim == 2]
        assert all(packed_copy(weight)[0].is_mkldnn for weight in matrices)
        backend.finish_generation()
        assert not any(hasattr(weight, COPY) for weight in matrices)
        backend.prepare_for_generation()
        backend.update_weights({name: p.detach() + 1 for name, p in backend.model.named_parameters()}, epoch=1)
        assert all(torch.equal(unpack(packed_copy(weight)), weight) for weight in matrices)
