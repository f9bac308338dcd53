"""What the docs state of Megatron Core and of NeMo RL, pinned, so that a change upstream is seen and not believed away.

`differences` holds a list of facts to a source tree: the installed megatron-core (the tests do, on every run) or a checkout
of NeMo RL, whose distribution on the package index is empty. The source is parsed and never imported.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from reference_impl.config.trees import MISSING, lookup
from reference_impl.doctesting.installed import NotFoundError, Source


@dataclass(frozen=True)
class Fact:
    """One statement about another project.

    `name` is a dotted object, or `FILE:KEY` for a key of a YAML file; `pinned` is what its source says, as text.
    """

    kind: Literal["abstract methods", "field", "members", "signature", "value", "yaml"]
    name: str
    pinned: str


def found(source: Source, fact: Fact) -> str:
    """What the source says about the fact's object; raises {class}`~reference_impl.doctesting.installed.NotFoundError`."""
    match fact.kind:
        case "abstract methods":
            return ", ".join(source.abstract_methods(fact.name))
        case "field":
            return str(source.field(fact.name))
        case "members":
            return ", ".join(f"{name} = {value}" for name, value in source.members(fact.name).items())
        case "signature":
            return source.signature(fact.name)
        case "value":
            return source.value(fact.name)
    return _in_yaml(source.folder, *fact.name.split(":"))


def _in_yaml(folder: Path, file: str, key: str) -> str:
    try:
        tree = yaml.safe_load((folder / file).read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise NotFoundError(f"{file} cannot be read: {error}") from None
    value = lookup(tree, key)
    if value is MISSING:
        raise NotFoundError(f"{file} has no {key}")
    return repr(value)


def differences(source: Source, facts: Iterable[Fact]) -> list[str]:
    """One line for each fact that is no longer so: the object, what is pinned here, and what the source says."""
    lines = []
    for fact in facts:
        try:
            now = found(source, fact)
        except NotFoundError as error:
            lines.append(f"{fact.name}: pinned {fact.pinned}, found nothing: {error}")
        else:
            if now != fact.pinned:
                lines.append(f"{fact.name}: pinned {fact.pinned}, found {now}")
    return lines


def _fields(owner: str, /, **pinned: str) -> Iterator[Fact]:
    return (Fact("field", f"{owner}.{name}", text) for name, text in pinned.items())


def _signatures(owner: str, /, **pinned: str) -> Iterator[Fact]:
    return (Fact("signature", f"{owner}.{name}", text) for name, text in pinned.items())


def _yaml(file: str, section: str, /, **pinned: str) -> Iterator[Fact]:
    return (Fact("yaml", f"{file}:{section}.{name}", text) for name, text in pinned.items())


_INFERENCE = "megatron.core.inference"
_CONTEXT = f"{_INFERENCE}.contexts.dynamic_context.DynamicInferenceContext"
_ENGINE = f"{_INFERENCE}.engines.dynamic_engine"
_REQUEST = f"{_INFERENCE}.inference_request"

_GRPO_MATH = "examples/configs/grpo_math_1B.yaml"

MEGATRON_CORE = (
    *_fields(
        f"{_INFERENCE}.config.InferenceConfig",
        buffer_size_gb="int = 20",
        block_size_tokens="int = 256",
        max_tokens="Optional[int] = None",
        max_requests="Optional[int] = None",
        max_sequence_length="int = 2560",
        num_cuda_graphs="Optional[int] = None",
        use_cuda_graphs_for_non_decode_steps="bool = True",
        cuda_graph_max_tokens="int = 512",
        enable_chunked_prefill="bool = False",
        enable_prefix_caching="bool = False",
        prefix_caching_eviction_policy="PrefixCachingEvictionPolicy = PrefixCachingEvictionPolicy.REF_ZERO",
        kv_cache_management_mode="KVCacheManagementMode = KVCacheManagementMode.PERSIST",
        materialize_only_last_token_logits="bool = True",
        num_speculative_tokens="int = 0",
        paused_buffer_size_gb="Optional[int] = None",
        unified_memory_level="int = 0",
        logging_step_interval="int = 0",
        logprobs_mode="Literal['raw_logprobs', 'processed_logprobs'] = 'raw_logprobs'",
        sampling_backend="Literal['torch', 'flashinfer'] = 'torch'",
        offset_sampling_seed_by_dp_rank="bool = True",
        track_paused_request_events="bool = False",
        use_flashinfer_fused_rope="Optional[bool] = False",
        ep_consensus_interval="int = 20",
    ),
    *_fields(
        "megatron.core.transformer.transformer_config.TransformerConfig",
        cuda_graph_impl="Literal['none', 'local', 'transformer_engine', 'full_iteration'] = 'none'",
        inference_cuda_graph_scope="Optional[InferenceCudaGraphScope] = None",
        enable_cuda_graph="bool = False",
        inference_sampling_seed="int = 42",
    ),
    *_fields(
        "megatron.core.model_parallel_config.ModelParallelConfig",
        tensor_model_parallel_size="int = 1",
        pipeline_model_parallel_size="int = 1",
        params_dtype="torch.dtype = torch.float32",
    ),
    # Off is 0 for top_k and 0.0 for top_p, and top_k = 1 is greedy.
    *_fields(
        f"{_INFERENCE}.sampling_params.SamplingParams",
        temperature="float = 1.0",
        top_k="int = 0",
        top_p="float = 0.0",
        return_log_probs="bool = False",
        skip_prompt_log_probs="bool = False",
        num_tokens_to_generate="int = None",
        num_tokens_total="Optional[int] = None",
        termination_id="Optional[int] = None",
        top_n_logprobs="int = 0",
        stop_words="Optional[List[str]] = None",
        detokenize_stop_sequence="bool = False",
    ),
    *_fields(
        f"{_REQUEST}.DynamicInferenceRequest",
        policy_epoch="Optional[list[tuple[int, int]]] = None",
        kv_cache_epoch="Optional[list[tuple[int, int]]] = None",
    ),
    Fact(
        "members",
        f"{_INFERENCE}.config.KVCacheManagementMode",
        "PERSIST = 'persist', OFFLOAD = 'offload', RECOMPUTE = 'recompute'",
    ),
    Fact("members", f"{_INFERENCE}.config.PrefixCachingEvictionPolicy", "REF_ZERO = 'ref_zero', LRU = 'lru'"),
    Fact("members", "megatron.core.transformer.enums.InferenceCudaGraphScope", "none = 1, layer = 2, block = 3"),
    Fact(
        "members",
        f"{_REQUEST}.DynamicInferenceEventType",
        "ADD_ENGINE = auto(), ADD_CONTEXT = auto(), GENERATED_TOKEN = auto(), PAUSE = auto(), EVICT = auto(), "
        "FINISH = auto(), FAIL = auto(), ERROR_TRANSIENT = auto(), ERROR_NONTRANSIENT = auto()",
    ),
    Fact(
        "members",
        f"{_REQUEST}.Status",
        "WAITING_IN_QUEUE = 1, ACTIVE_AND_GENERATING_TOKENS = 2, ACTIVE_BUT_NOT_GENERATING_TOKENS = 3, COMPLETED = 4, "
        "FAILED = 5",
    ),
    Fact(
        "members",
        f"{_ENGINE}.EngineState",
        "RUNNING = auto(), PAUSING = auto(), PAUSED = auto(), UNPAUSING = auto(), SUSPENDING = auto(), "
        "SUSPENDED = auto(), RESUMING = auto(), RESUMED = auto(), STOPPING = auto(), STOPPED = auto()",
    ),
    Fact("value", f"{_CONTEXT}.TOKEN_ROUNDER", "64"),
    Fact("value", f"{_CONTEXT}.REQUEST_ROUNDER", "4"),
    *_signatures(_CONTEXT, __init__="(model_config: TransformerConfig, inference_config: InferenceConfig)"),
    *_signatures(
        f"{_ENGINE}.DynamicInferenceEngine",
        __init__="(controller: TextGenerationController, context: DynamicInferenceContext)",
        add_request="(request_id: int, prompt: Union[str, List[int], Tensor], "
        "sampling_params: Optional[SamplingParams]=None) -> asyncio.Future[DynamicInferenceRequest]",
        schedule_requests="() -> int",
        suspend="()",
        resume="()",
        async_step="() -> Tuple[List[DynamicInferenceRequest], List[DynamicInferenceRequest], float]",
    ),
    *_signatures(f"{_REQUEST}.DynamicInferenceRequestRecord", checkpoint="(tokenizer: MegatronTokenizer | None=None)"),
    *_signatures(
        f"{_INFERENCE}.inference_client.InferenceClient",
        __init__="(inference_coordinator_address: str, deserialize: bool=False)",
        add_request="(prompt: Union[str, List[int]], sampling_params: SamplingParams) -> asyncio.Future",
        set_generation_epoch="(generation_epoch: int)",
        pause_engines="()",
        unpause_engines="() -> None",
        suspend_engines="()",
        resume_engines="()",
        stop_engines="()",
    ),
    *_signatures(
        f"{_INFERENCE}.model_inference_wrappers.gpt.gpt_inference_wrapper.GPTInferenceWrapper",
        __init__="(model: GPTModel, inference_context: Optional[BaseInferenceContext]=None)",
    ),
    *_signatures(
        f"{_INFERENCE}.text_generation_controllers.text_generation_controller.TextGenerationController",
        __init__="(inference_wrapped_model: AbstractModelInferenceWrapper, tokenizer)",
    ),
)
"""Of megatron-core: every field that a key of a recipe sets, and what the pages name."""

_CONTRACT = "nemo_rl.models.generation.interfaces"

NEMO_RL = (
    *_fields(
        f"{_CONTRACT}.GenerationDatumSpec",
        input_ids="torch.Tensor",
        input_lengths="torch.Tensor",
        stop_strings="NotRequired[list[str]]",
        __extra__="Any",
    ),
    *_fields(
        f"{_CONTRACT}.GenerationOutputSpec",
        output_ids="torch.Tensor",
        generation_lengths="torch.Tensor",
        unpadded_sequence_lengths="torch.Tensor",
        logprobs="torch.Tensor",
        truncated="NotRequired[torch.Tensor]",
        __extra__="Any",
    ),
    Fact(
        "abstract methods",
        f"{_CONTRACT}.GenerationInterface",
        "init_collective, generate, prepare_for_generation, finish_generation, shutdown",
    ),
    *_signatures(
        f"{_CONTRACT}.GenerationInterface",
        generate="(data: BatchedDataDict['GenerationDatumSpec'], greedy: bool) -> BatchedDataDict['GenerationOutputSpec']",
        prepare_for_generation="(*args: Any, **kwargs: Any) -> bool",
        finish_generation="(*args: Any, **kwargs: Any) -> bool",
        shutdown="() -> bool",
        prepare_refit_info="(state_dict_info: dict[str, Any]) -> None",
        invalidate_kv_cache="() -> bool",
    ),
    *_yaml(
        _GRPO_MATH,
        "policy.generation.mcore_generation_config",
        buffer_size_gb="10",
        block_size_tokens="256",
        max_tokens="16384",
        max_model_len="'${policy.max_total_sequence_length}'",
        num_cuda_graphs="4",
        use_cuda_graphs_for_non_decode_steps="True",
        cuda_graph_impl="'local'",
        inference_cuda_graph_scope="'block'",
        enable_chunked_prefill="True",
        enable_prefix_caching="False",
        kv_cache_management_mode="'persist'",
        materialize_only_last_token_logits="True",
        num_speculative_tokens="0",
        refit_backend="'nccl'",
        expose_http_server="False",
        parsers="[]",
    ),
    *_yaml(
        _GRPO_MATH,
        "grpo",
        num_prompts_per_step="32",
        num_generations_per_prompt="16",
        max_num_steps="1000000",
        normalize_rewards="True",
        use_leave_one_out_baseline="True",
        seed="42",
    ),
    *_yaml(
        _GRPO_MATH,
        "grpo.async_grpo",
        enabled="False",
        max_trajectory_age_steps="1",
        in_flight_weight_updates="False",
        recompute_kv_cache_after_weight_updates="False",
    ),
    *_yaml(
        _GRPO_MATH,
        "loss_fn",
        reference_policy_kl_penalty="0.01",
        ratio_clip_min="0.2",
        ratio_clip_max="0.2",
        use_importance_sampling_correction="False",
        truncated_importance_sampling_type="None",
        truncated_importance_sampling_ratio="None",
        truncated_importance_sampling_ratio_min="None",
    ),
    *_yaml(
        _GRPO_MATH,
        "checkpointing",
        enabled="True",
        save_period="10",
    ),
    *_yaml(
        _GRPO_MATH,
        "policy",
        max_grad_norm="1.0",
    ),
    *_yaml(
        _GRPO_MATH,
        "policy.megatron_cfg.optimizer",
        lr="5e-06",
        weight_decay="0.01",
        adam_beta1="0.9",
        adam_beta2="0.999",
    ),
    *_yaml(
        _GRPO_MATH,
        "policy.generation",
        max_new_tokens="'${policy.max_total_sequence_length}'",
        temperature="1.0",
        top_p="1.0",
        top_k="None",
        val_temperature="'${.temperature}'",
        val_top_p="'${.top_p}'",
        val_top_k="'${.top_k}'",
        stop_token_ids="None",
        stop_strings="None",
    ),
)
"""Of NeMo RL: the contract that our backends keep to, and the defaults that our schema takes over."""
