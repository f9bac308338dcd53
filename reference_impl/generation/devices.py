"""Where a recipe's model runs, and in which type."""

import torch

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import PolicyConfig


def choose_device(policy: PolicyConfig) -> torch.device:
    """The device that `policy.device` asks for; `auto` is CUDA where there is one. A recipe for many ranks is refused."""
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size"):
        if (ranks := getattr(policy.megatron_cfg, key)) > 1:
            raise ConfigError(f"policy.megatron_cfg.{key}: {ranks}, but this backend runs on one rank; write 1")
    found = torch.cuda.is_available()
    if policy.device == "cuda" and not found:
        raise ConfigError("policy.device: cuda, but PyTorch finds no CUDA device; write auto or cpu")
    if policy.device == "cpu" or not found:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def choose_dtype(policy: PolicyConfig, device: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU and bfloat16 on CUDA."""
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return named.get(policy.precision, torch.float32 if device.type == "cpu" else torch.bfloat16)
