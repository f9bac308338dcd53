"""Matrix products on a CPU with weights packed once for oneDNN, which is two to four times as fast at few rows.

A packed weight is a copy in the layout that oneDNN's kernels read. It serves any number of rows, and gives its plain form
back bit for bit. Where packing does not apply (CUDA, bfloat16, no oneDNN), the plain tensor is used where it lies.

A large weight is packed in pieces, and packed again piece by piece, each into the memory that the old one has just left.
What is larger than 32 MB malloc returns to the system when it is freed, and to map it anew takes longer than packing.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Packed = list[Tensor]
"""The pieces of a packed weight, in the order of its rows; opaque tensors for {py:func}`product`."""

PIECE_BYTES = 16 << 20
"""Most of a weight that is packed as one piece."""


def can_pack(weight: Tensor) -> bool:
    """Whether a packed copy of this weight [out, in] would be used."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and torch.backends.mkldnn.is_available()


def pack(weight: Tensor) -> Packed:
    """The packed copy of a float32 weight [out, in]."""
    return [_pack(part) for part in _parts(weight)]


def repack(packed: Packed, weight: Tensor) -> None:
    """Let a packed copy have the values of `weight`, of the same size as before, for all who hold it."""
    for part in _parts(weight):
        del packed[0]  # before the new piece is made, which takes its memory
        packed.append(_pack(part))


def _parts(weight: Tensor) -> tuple[Tensor, ...]:
    return weight.detach().split(max(1, PIECE_BYTES // (weight.shape[1] * weight.element_size())))


def _pack(part: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(part.contiguous())


def unpack(packed: Packed) -> Tensor:
    """The plain weight [out, in] again, bit for bit."""
    return torch.cat([piece.to_dense() for piece in packed])


def product(x: Tensor, weight: Tensor | Packed) -> Tensor:
    """`x` [rows, in] times the transpose of a plain or packed `weight` [out, in]: [rows, out]."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight)
    return packed_product(x, weight)


def packed_product(x: Tensor, weight: Packed, bias: Tensor | None = None) -> Tensor:
    """The same of a packed weight, plus a `bias` [out]."""
    if len(weight) == 1:
        return torch.ops.mkldnn._linear_pointwise(x, weight[0], bias, "none", [], "")
    sizes = [piece.shape[0] for piece in weight]
    biases = [None] * len(sizes) if bias is None else bias.split(sizes)
    return torch.cat([packed_product(x, [piece], some) for piece, some in zip(weight, biases, strict=True)], -1)


def product_added(x: Tensor, weight: Tensor | Packed, residual: Tensor) -> Tensor:
    """`product(x, weight) + residual`, in one pass over the result where the weight is packed as one piece."""
    if not isinstance(weight, Tensor) and len(weight) == 1:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, weight[0], None, "add")
    return product(x, weight).add_(residual)


# --- beside the parameters of a model that somebody else runs -------------------------------------------------------------

COPY = "packed_copy"
"""Attribute of a parameter: the version of its values that was packed, and the packed copy."""


def keep_packed(model: Any) -> None:
    """Put a packed copy beside each matrix of the model, or its values into the one that is there; one full copy in all."""
    for parameter in model.parameters():
        if can_pack(parameter) and parameter.ndim == 2:
            _, packed = getattr(parameter, COPY, (None, None))
            if packed is None:
                packed = pack(parameter)
            else:
                repack(packed, parameter)
            setattr(parameter, COPY, (parameter._version, packed))


def drop_packed(model: Any) -> None:
    """Take the copies away."""
    for parameter in model.parameters():
        if hasattr(parameter, COPY):
            delattr(parameter, COPY)


def packed_copy(weight: Tensor) -> Packed | None:
    """The packed copy of a parameter, or `None` where there is none or its values have changed since."""
    version, packed = getattr(weight, COPY, (None, None))
    return packed if version == weight._version else None
