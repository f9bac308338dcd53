"""The one place where a Megatron `GPTModel` is made.

megatron-core 0.19 announces that `HybridModel` will take `GPTModel`'s place; NeMo RL and `GPTInferenceWrapper` still use
`GPTModel`, and so does this project. When that changes, this file changes.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reference_impl.models.llama import LlamaShape, check_weights, hf_from_megatron, megatron_from_hf
from reference_impl.platforms.megatron_import import import_megatron
from reference_impl.platforms.single_rank import ensure_single_rank


def build_gpt_model(
    shape: LlamaShape,
    weights: Mapping[str, Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 1234,
    cuda_graph_impl: str = "none",
    inference_cuda_graph_scope: str = "none",
) -> Any:
    """Build a `GPTModel` (local spec, one rank) with a Llama's weights, in evaluation mode.

    `weights` are under Hugging Face names; they are copied into the model's parameters, tensor by tensor. `seed` is the
    `inference_sampling_seed` from which Megatron seeds its sampler. The parameters keep `requires_grad`: it is the model
    that training updates. One rank is initialised if nobody has done so.
    """
    import_megatron()
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import initialize_rng_tracker

    ensure_single_rank()
    # CUDA graphs can only capture the inference tracker, and it is the one that works without CUDA. A trainer that has set
    # up a tracker of its own before keeps it.
    initialize_rng_tracker(inference_rng_tracker=True)
    config = transformer_config(shape, dtype, seed, cuda_graph_impl, inference_cuda_graph_scope)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_position_embeddings,
        position_embedding_type="rope",
        rotary_base=shape.rope_theta,
        share_embeddings_and_output_weights=shape.tie_word_embeddings,
    )
    model = model.to(device=device, dtype=dtype)
    load_weights(model, weights, shape)
    return model.eval()


def load_weights(model: Any, weights: Mapping[str, Tensor], shape: LlamaShape) -> None:
    """Copy Hugging Face-named weights into the model's own parameters; no parameter is replaced, nothing else moves."""
    check_weights(weights, shape, "state dict")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in megatron_from_hf(weights, shape):
            parameters[name].copy_(tensor)


def export_weights(model: Any, shape: LlamaShape) -> dict[str, Tensor]:
    """The model's weights under Hugging Face names, as views of its parameters where the layout allows."""
    return hf_from_megatron({name: p.detach() for name, p in model.named_parameters()}, shape)


def transformer_config(
    shape: LlamaShape, dtype: torch.dtype, seed: int, cuda_graph_impl: str, inference_cuda_graph_scope: str
) -> Any:
    """Megatron's `TransformerConfig` for a Llama: RMSNorm, SwiGLU, no biases, no dropout, grouped queries."""
    import_megatron()
    from megatron.core.transformer.enums import InferenceCudaGraphScope
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=shape.rms_norm_eps,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,  # the weights are loaded, so drawing them first would only cost time
        inference_sampling_seed=seed,
        cuda_graph_impl=cuda_graph_impl,
        inference_cuda_graph_scope=InferenceCudaGraphScope[inference_cuda_graph_scope],
    )
