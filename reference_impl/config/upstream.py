"""What each key of a recipe becomes in Megatron Core, what its number counts, since when it exists, and what a CPU makes of it.

The reference page's tables are made from this table and the schema. Releases were read from the tags of NeMo RL and of
Megatron-LM: a key is as old as the first release of NeMo RL whose `examples/configs/grpo_math_1B.yaml` writes it, or whose
generation worker reads it. A key without such a release is this project's.
"""

from dataclasses import dataclass

from reference_impl.config.schema import MCORE_KEY
from reference_impl.config.training import RECOMPUTE_KEY

AS_ON_CUDA = "As on CUDA."
NO_GRAPHS = "No effect: a CPU has no CUDA graphs."
UNUSED = "Unused there, too."
OURS = "this project"


@dataclass(frozen=True)
class UpstreamKey:
    """Where a key comes from and where it goes.

    `object`, `field`
    : The class of megatron-core that takes the value and its field there; both empty where none does.

    `unit`
    : What the number counts; empty for what is no number.

    `since`
    : The first release that has the key.

    `on_cpu`
    : What the key does on a CPU, in one line.
    """

    object: str = ""
    field: str = ""
    unit: str = ""
    since: str = OURS
    on_cpu: str = AS_ON_CUDA


def _inference(field: str, unit: str = "", since: str = "NeMo RL 0.7", on_cpu: str = AS_ON_CUDA) -> UpstreamKey:
    return UpstreamKey("InferenceConfig", field, unit, since, on_cpu)


def _transformer(field: str, unit: str = "", since: str = "NeMo RL 0.7", on_cpu: str = AS_ON_CUDA) -> UpstreamKey:
    return UpstreamKey("TransformerConfig", field, unit, since, on_cpu)


def _parallel(field: str, unit: str, since: str, on_cpu: str = AS_ON_CUDA) -> UpstreamKey:
    return UpstreamKey("ModelParallelConfig", field, unit, since, on_cpu)


def _sampling(field: str, unit: str = "", since: str = "NeMo RL 0.1") -> UpstreamKey:
    return UpstreamKey("SamplingParams", field, unit, since)


_ENGINE = {
    "buffer_size_gb": _inference(
        "buffer_size_gb", "GiB", "NeMo RL 0.5", "The memory is the host's, and the default may not fit."
    ),
    "block_size_tokens": _inference("block_size_tokens", "tokens", "NeMo RL 0.5"),
    "max_tokens": _inference("max_tokens", "tokens", "NeMo RL 0.5"),
    "max_model_len": _inference("max_sequence_length", "tokens"),
    "num_cuda_graphs": _inference(
        "num_cuda_graphs",
        "graphs",
        "NeMo RL 0.5",
        "No effect: a CPU has no CUDA graphs. Setting it gives a warning.",
    ),
    "use_cuda_graphs_for_non_decode_steps": _inference(
        "use_cuda_graphs_for_non_decode_steps", since="NeMo RL 0.5", on_cpu=NO_GRAPHS
    ),
    "cuda_graph_impl": _transformer("cuda_graph_impl", on_cpu="Always none: a CPU has no CUDA graphs."),
    "inference_cuda_graph_scope": _transformer(
        "inference_cuda_graph_scope", on_cpu="Always none: a CPU has no CUDA graphs."
    ),
    "enable_chunked_prefill": _inference("enable_chunked_prefill", since="NeMo RL 0.5"),
    "enable_prefix_caching": _inference("enable_prefix_caching"),
    "kv_cache_management_mode": _inference(
        "kv_cache_management_mode", on_cpu="offload copies from host memory to host memory, and saves none."
    ),
    "materialize_only_last_token_logits": _inference("materialize_only_last_token_logits"),
    "num_speculative_tokens": _inference("num_speculative_tokens", "tokens"),
    "max_requests": _inference("max_requests", "requests"),
    "refit_backend": UpstreamKey(since="NeMo RL 0.7", on_cpu=UNUSED),
    "expose_http_server": UpstreamKey(since="NeMo RL 0.7"),
    "parsers": UpstreamKey(since="NeMo RL 0.7", on_cpu=UNUSED),
    "logging_step_interval": _inference("logging_step_interval", "engine steps"),
}

UPSTREAM_KEYS: dict[str, UpstreamKey] = {
    "policy.model_name": UpstreamKey(since="NeMo RL 0.1"),
    "policy.max_total_sequence_length": UpstreamKey(unit="tokens", since="NeMo RL 0.1"),
    "policy.precision": _parallel("params_dtype", "", "NeMo RL 0.1", "auto is float32."),
    "policy.device": UpstreamKey(on_cpu="cuda is refused where there is no CUDA device."),
    "policy.train_global_batch_size": UpstreamKey(unit="rollouts", since="NeMo RL 0.1"),
    "policy.train_micro_batch_size": UpstreamKey(unit="rollouts", since="NeMo RL 0.1"),
    "policy.max_grad_norm": UpstreamKey(since="NeMo RL 0.2"),
    "policy.megatron_cfg.tensor_model_parallel_size": _parallel("tensor_model_parallel_size", "ranks", "NeMo RL 0.3"),
    "policy.megatron_cfg.pipeline_model_parallel_size": _parallel(
        "pipeline_model_parallel_size", "ranks", "NeMo RL 0.3"
    ),
    **{
        f"policy.megatron_cfg.optimizer.{name}": UpstreamKey(since="NeMo RL 0.3")
        for name in ("lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
    },
    "policy.generation.backend": UpstreamKey(since="NeMo RL 0.1"),
    "policy.generation.mode": UpstreamKey(),
    "policy.generation.max_new_tokens": _sampling("num_tokens_to_generate", "tokens"),
    "policy.generation.temperature": _sampling("temperature"),
    "policy.generation.top_p": _sampling("top_p", "probability"),
    "policy.generation.top_k": _sampling("top_k", "tokens"),
    "policy.generation.val_temperature": _sampling("temperature", since="NeMo RL after 0.7"),
    "policy.generation.val_top_p": _sampling("top_p", "probability", "NeMo RL after 0.7"),
    "policy.generation.val_top_k": _sampling("top_k", "tokens", "NeMo RL after 0.7"),
    "policy.generation.stop_token_ids": UpstreamKey(unit="token ids", since="NeMo RL 0.2"),
    "policy.generation.stop_strings": UpstreamKey(since="NeMo RL 0.2"),
    "policy.generation.logprobs_mode": _inference("logprobs_mode", since=OURS),
    "policy.generation.seed": _transformer("inference_sampling_seed", since=OURS),
    "policy.generation.reuse_across_updates": UpstreamKey(),
    "policy.generation.colocated.enabled": UpstreamKey(since="NeMo RL 0.3"),
    **{f"{MCORE_KEY}.{name}": key for name, key in _ENGINE.items()},
    "grpo.num_prompts_per_step": UpstreamKey(unit="episodes", since="NeMo RL 0.1"),
    "grpo.num_generations_per_prompt": UpstreamKey(unit="rollouts", since="NeMo RL 0.1"),
    "grpo.max_num_steps": UpstreamKey(unit="training steps", since="NeMo RL 0.1"),
    "grpo.normalize_rewards": UpstreamKey(since="NeMo RL 0.1"),
    "grpo.use_leave_one_out_baseline": UpstreamKey(since="NeMo RL 0.1"),
    "grpo.seed": UpstreamKey(since="NeMo RL 0.4"),
    "grpo.demonstration_steps": UpstreamKey(unit="supervised steps"),
    "grpo.async_grpo.enabled": UpstreamKey(since="NeMo RL 0.4"),
    "grpo.async_grpo.max_trajectory_age_steps": UpstreamKey(unit="training steps", since="NeMo RL 0.4"),
    "grpo.async_grpo.in_flight_weight_updates": UpstreamKey(since="NeMo RL 0.4"),
    RECOMPUTE_KEY: _inference("kv_cache_management_mode", since="NeMo RL 0.4"),
    "loss_fn.reference_policy_kl_penalty": UpstreamKey(since="NeMo RL 0.1"),
    "loss_fn.ratio_clip_min": UpstreamKey(since="NeMo RL 0.2.1"),
    "loss_fn.ratio_clip_max": UpstreamKey(since="NeMo RL 0.2.1"),
    "loss_fn.use_importance_sampling_correction": UpstreamKey(since="NeMo RL 0.2"),
    "loss_fn.truncated_importance_sampling_type": UpstreamKey(since="NeMo RL 0.6"),
    "loss_fn.truncated_importance_sampling_ratio": UpstreamKey(since="NeMo RL 0.4"),
    "loss_fn.truncated_importance_sampling_ratio_min": UpstreamKey(since="NeMo RL 0.6"),
    "loss_fn.max_token_staleness": UpstreamKey(unit="training steps"),
    "env.name": UpstreamKey(),
    "env.timeout_seconds": UpstreamKey(unit="seconds"),
    "env.delay_seconds": UpstreamKey(unit="seconds"),
    "env.failure_rate": UpstreamKey(unit="share, 0 to 1"),
    "checkpointing.enabled": UpstreamKey(since="NeMo RL 0.1"),
    "checkpointing.save_period": UpstreamKey(unit="training steps", since="NeMo RL 0.1"),
}
"""Every key of the schema that is a value and not a section."""
