"""Matrix products on a CPU with weights packed once for oneDNN, which is two to four times as fast at few rows.

A packed weight is a copy in the layout that oneDNN's kernels read. It serves any number of rows, and gives its plain form
back bit for bit. Where packing does not apply (CUDA, bfloat16, no oneDNN), the plain tensor is used where it lies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def can_pack(weight: Tensor) -> bool:
    """Whether a packed copy of this weight [out, in] would be used."""
    return weight.device.type == "cpu" and weight.dtype is torch.float32 and torch.backends.mkldnn.is_available()


def pack(weight: Tensor) -> Tensor:
    """The packed copy of a float32 weight [out, in]; an opaque tensor for {py:func}`product`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())


def unpack(packed: Tensor) -> Tensor:
    """The plain weight [out, in] again, bit for bit."""
    return packed.to_dense()


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [rows, in] times the transpose of a plain or packed `weight` [out, in]: [rows, out]."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def product_added(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """`product(x, weight) + residual`, in one pass over the result where the weight is packed."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, weight, None, "add")
    return F.linear(x, weight).add_(residual)


# --- beside the parameters of a model that somebody else runs -------------------------------------------------------------

COPY = "packed_copy"
"""Attribute of a parameter: the version of its values that was packed, and the packed copy."""


def keep_packed(model: Any) -> None:
    """Put a packed copy beside each matrix of the model, in place of the one that was there; one full copy in all."""
    for parameter in model.parameters():
        if can_pack(parameter) and parameter.ndim == 2:
            setattr(parameter, COPY, (parameter._version, pack(parameter)))


def drop_packed(model: Any) -> None:
    """Take the copies away."""
    for parameter in model.parameters():
        if hasattr(parameter, COPY):
            delattr(parameter, COPY)


def packed_or_plain(weight: Tensor) -> Tensor:
    """The packed copy of a parameter, or the parameter itself where there is none or its values have changed since."""
    version, packed = getattr(weight, COPY, (None, None))
    return packed if packed is not None and version == weight._version else weight
