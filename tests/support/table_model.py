"""The suite's table model as a `GPTModel`, for tests that look into Megatron's engine."""

from torch import Tensor

from reference_impl.conformance.table_model import SHAPE, weights_for
from reference_impl.models.gpt import build_gpt_model
from reference_impl.models.llama import megatron_from_hf


def table_model(table: Tensor, seed: int = 1234):
    """The model itself, float32 on the CPU."""
    return build_gpt_model(SHAPE, weights_for(table), seed=seed)


def megatron_weights_for(table: Tensor) -> dict[str, Tensor]:
    """Its weights for another table under Megatron's names, for `update_weights`."""
    return dict(megatron_from_hf(weights_for(table), SHAPE))
