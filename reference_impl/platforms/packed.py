"""Matrix products on a CPU with weights packed once for oneDNN, which is two to four times as fast at few rows.

A packed weight is a copy in the layout that oneDNN's kernels read. It serves any number of rows, and gives its plain form
back bit for bit. Where packing does not apply (CUDA, bfloat16, no oneDNN), the plain tensor is used where it lies.
"""

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
