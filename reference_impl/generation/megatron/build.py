"""From YAML to engine: `mcore_generation_config` becomes an `InferenceConfig`, and that a `DynamicInferenceEngine`.

The chain is Megatron's own and is built in its order: the context holds the KV cache, the wrapper runs the model over it,
the controller samples, the engine schedules.
"""

import logging
from typing import Any

import torch

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import GenerationConfig, PolicyConfig, Recipe
from reference_impl.generation import devices
from reference_impl.models.llama import LlamaShape
from reference_impl.planning.cache import Setup, kv_cache
from reference_impl.platforms import cpu, cuda
from reference_impl.platforms.single_rank import ensure_single_rank

log = logging.getLogger("genref")


class TokenIds:
    """What the engine takes for a tokenizer: text is token ids with spaces between.

    The real tokenizer stays outside. The coordinator process unpickles this class, so it lives at module level.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.bos = self.eod = self.pad = -1

    def tokenize(self, text: str, **kwargs: Any) -> list[int]:
        """`"5 6"` -> `[5, 6]`."""
        return [int(piece) for piece in text.split()]

    def detokenize(self, ids: list[int], **kwargs: Any) -> str:
        """`[5, 6]` -> `"5 6"`."""
        return " ".join(map(str, ids))


def choose_device(policy: PolicyConfig) -> torch.device:
    """The device that `policy.device` asks for, with Megatron's platform for it switched on."""
    device = devices.choose_device(policy)
    if device.type == "cpu" and not cpu.needed():
        raise ConfigError(
            "policy.device: cpu, but there is a CUDA device, which Megatron would use; hide it with CUDA_VISIBLE_DEVICES=''"
        )
    if not cpu.enable():
        log.info("attention: %s", cuda.enable())
    return device


def graph_settings(recipe: Recipe, device: torch.device) -> tuple[str, str]:
    """(`cuda_graph_impl`, `inference_cuda_graph_scope`) for the model; both `none` on a CPU, which has no graphs."""
    config = recipe.policy.generation.mcore_generation_config
    if device.type == "cpu":
        key = "policy.generation.mcore_generation_config.num_cuda_graphs"
        if key in recipe.explicit and config.num_cuda_graphs and config.cuda_graph_impl != "none":
            log.warning("%s: %s, but CUDA graphs are off on a CPU", key, config.num_cuda_graphs)
        return "none", "none"
    if config.cuda_graph_impl == "none":
        return "none", "none"
    return config.cuda_graph_impl, config.inference_cuda_graph_scope


def inference_config(generation: GenerationConfig, shape: LlamaShape, dtype: torch.dtype, device: torch.device) -> Any:
    """Megatron's `InferenceConfig`, key by key."""
    from megatron.core.inference.config import InferenceConfig, KVCacheManagementMode

    config = generation.mcore_generation_config
    graphs_for_prefill = config.use_cuda_graphs_for_non_decode_steps and not cuda.prefill_needs_host(device)
    return InferenceConfig(
        block_size_tokens=config.block_size_tokens,
        buffer_size_gb=config.buffer_size_gb,
        # Left to itself, 0.19.2 takes one request a block and asserts that a step can hold them all, so that the documented
        # `buffer_size_gb: 10` would fail on a small model.
        max_requests=kv_cache(Setup(config, shape, str(dtype).removeprefix("torch."))).max_requests,
        max_tokens=config.max_tokens,
        max_sequence_length=config.max_model_len,
        num_cuda_graphs=(config.num_cuda_graphs or None) if device.type == "cuda" else None,  # 0.19.2 asserts on 0
        use_cuda_graphs_for_non_decode_steps=graphs_for_prefill,
        kv_cache_management_mode=KVCacheManagementMode(config.kv_cache_management_mode),
        materialize_only_last_token_logits=config.materialize_only_last_token_logits,
        enable_chunked_prefill=config.enable_chunked_prefill,
        enable_prefix_caching=config.enable_prefix_caching,
        num_speculative_tokens=config.num_speculative_tokens,
        logging_step_interval=config.logging_step_interval,
        logprobs_mode=generation.logprobs_mode,
        use_flashinfer_fused_rope=False,
        # The coordinator's loop looks for a PAUSE once in this many steps; with one rank the look costs nothing.
        ep_consensus_interval=1,
    )


def build_engine(recipe: Recipe, model: Any, shape: LlamaShape, device: torch.device) -> Any:
    """Context, wrapper, controller and engine over a model that stays the caller's; its weights are used where they lie."""
    ensure_single_rank()
    from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext
    from megatron.core.inference.engines.dynamic_engine import DynamicInferenceEngine
    from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
    from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController

    from reference_impl.generation.megatron.sampling import ExactSampling

    model.eval()
    config = inference_config(recipe.policy.generation, shape, model.config.params_dtype, device)
    try:
        context = DynamicInferenceContext(model.config, config)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        size = recipe.policy.generation.mcore_generation_config.buffer_size_gb
        raise ConfigError(
            f"policy.generation.mcore_generation_config.buffer_size_gb: {size:g} does not fit into memory"
        ) from error
    controller = TextGenerationController(GPTInferenceWrapper(model, context), TokenIds(shape.vocab_size))
    controller._sampling = ExactSampling(controller.sampling_rng)
    return DynamicInferenceEngine(controller, context)
