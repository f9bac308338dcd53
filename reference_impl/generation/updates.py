"""What a weight update has to be before anything of it is used: later, complete, of the right shapes, and finite."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference_impl.staleness.tracker import StalenessTracker


def check_epoch(epoch: int, current: int) -> None:
    """Raise `ValueError` for what is no epoch, or one that is older than the current."""
    StalenessTracker(current).weights_changed(epoch)


def check_shapes(expected: Mapping[str, torch.Size], given: Mapping[str, torch.Size]) -> None:
    """Raise `ValueError` that names the first weight which is unknown, missing or of another shape."""
    if unknown := sorted(set(given) - set(expected)):
        raise ValueError(
            f"weight {unknown[0]} is not a parameter of the model; one of its names is {next(iter(expected))}"
        )
    for name, size in expected.items():
        if name not in given:
            raise ValueError(f"weight {name} is missing from the update")
        if given[name] != size:
            raise ValueError(f"weight {name} has shape {list(given[name])}, expected {list(size)}")


def check_finite(weights: Mapping[str, Tensor]) -> None:
    """Raise `ValueError` that names the first weight with a NaN or an infinity. Nothing is copied."""
    for name, weight in weights.items():
        if torch.isfinite(
            weight.sum()
        ):  # one such value would spoil the sum; so would large ones, which the rest tells apart
            continue
        low, high = torch.aminmax(weight)  # NaN if there is one, and an infinity is an extreme
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ValueError(f"weight {name} holds {low.item() if not torch.isfinite(low) else high.item()}")


def copy_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Copy into the model's own parameters, tensor by tensor: whoever else holds them, training above all, sees it too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def shapes_of(model: Any) -> dict[str, torch.Size]:
    """Name -> shape of the model's parameters."""
    return {name: parameter.shape for name, parameter in model.named_parameters()}
