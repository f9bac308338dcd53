"""Further checkpoints of a model, for trying out weight updates without a trainer: real weights that differ visibly."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def parameters_of(model: Any) -> dict[str, Tensor]:
    """A copy of the model's parameters under its own names, as the checkpoint to start from."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def perturbed(weights: Mapping[str, Tensor], epoch: int, strength: float = 0.1) -> dict[str, Tensor]:
    """A checkpoint some way off `weights`: every matrix gets normal noise of `strength` times its own deviation.

    Epoch 0 is `weights` itself; each other epoch is another seed, the same on every machine. Vectors (the norms) stay.
    """
    if epoch == 0:
        return dict(weights)
    generator = torch.Generator().manual_seed(epoch)
    moved = {}
    for name, weight in weights.items():
        if weight.ndim < 2:
            moved[name] = weight
            continue
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        moved[name] = weight + noise * (strength * weight.float().std().to(weight))
    return moved
