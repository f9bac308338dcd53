"""The keys of a recipe that this package reads, with their types, units and defaults.

The names and defaults are those of NeMo RL's Megatron generation section (`policy.generation.mcore_generation_config` in its
recipes), so that a recipe written for NeMo RL loads here unchanged; keys that only this package has say so. Types are
strict: megatron-core takes `"256"` and runs with it, here it is an error before any memory is allocated.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from reference_impl.config.section import NULL_IS_EMPTY, Follows, Section
from reference_impl.config.training import (
    RECOMPUTE_KEY,
    CheckpointingConfig,
    EnvConfig,
    GrpoConfig,
    LossConfig,
    OptimizerConfig,
)
from reference_impl.config.trees import MISSING, lookup, with_value

MCORE_KEY = "policy.generation.mcore_generation_config"
MODE_KEY = f"{MCORE_KEY}.kv_cache_management_mode"


def _only_local_graphs(value: Any) -> Any:
    if value in ("transformer_engine", "full_iteration"):
        raise PydanticCustomError(
            "unsupported", f"{value!r} is a training graph and is not supported; use local or none"
        )
    return value


def _no_automatic_graphs(value: Any) -> Any:
    if value == -1:
        text = "-1, sizes that megatron-core chooses, is not supported; write the most sizes that get a graph"
        raise PydanticCustomError("unsupported", text)
    return value


def _no_speculation(value: int) -> int:
    if value != 0:
        text = f"{value} is not supported, the reference models have no multi-token prediction heads; expected 0"
        raise PydanticCustomError("unsupported", text)
    return value


def _no_server(value: bool) -> bool:
    if value:
        raise PydanticCustomError(
            "unsupported", "true is not supported, this backend serves no HTTP yet; expected false"
        )
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise PydanticCustomError("recipe", "'' would stop before the first token; expected at least one character")
    return value


def _none_if_off(value: int | None) -> int | None:
    return None if value in (0, -1) else value


TokenId = Annotated[int, Field(ge=0)]
StopString = Annotated[str, AfterValidator(_not_empty)]
# Off has three spellings in the field (null in NeMo RL, 0 in megatron-core, -1 in vLLM); past this line it has one.
TopK = Annotated[int | None, Field(ge=-1), AfterValidator(_none_if_off)]


class MCoreGenerationConfig(Section):
    """What the Megatron engine is built with: its cache, its batch limits and its CUDA graphs.

    Definitions are those of megatron-core's `InferenceConfig`, where `max_model_len` is called `max_sequence_length` and the
    two graph choices live on the model's `TransformerConfig`. An unknown key is an error, for megatron-core would ignore it.
    """

    model_config = ConfigDict(extra="forbid")

    buffer_size_gb: float = Field(10.0, gt=0, description="Device memory for the KV cache, in GiB.")
    block_size_tokens: int = Field(
        256, gt=0, description="Tokens in one KV block, the unit in which cache is given out."
    )
    max_tokens: int = Field(16384, gt=0, description="Most tokens that one engine step may process, over all requests.")
    max_model_len: Annotated[int, Follows("${policy.max_total_sequence_length}")] = Field(
        gt=0, description="Most tokens of one sequence, prompt and response together."
    )
    num_cuda_graphs: Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_no_automatic_graphs)] = Field(
        4,
        description="Most batch sizes that get a CUDA graph of their own; null and 0 capture none.",
    )
    use_cuda_graphs_for_non_decode_steps: bool = Field(
        True, description="Whether steps that process prompts replay CUDA graphs too."
    )
    cuda_graph_impl: Annotated[Literal["none", "local"], BeforeValidator(_only_local_graphs)] = Field(
        "local", description="Whether CUDA graphs are captured by megatron-core itself (local) or not at all (none)."
    )
    inference_cuda_graph_scope: Literal["none", "layer", "block"] = Field(
        "block", description="What one CUDA graph spans: nothing, one transformer layer, or the whole block of layers."
    )
    enable_chunked_prefill: bool = Field(
        True, description="Whether a prompt longer than the tokens left in a step is processed over several steps."
    )
    enable_prefix_caching: bool = Field(
        False, description="Whether requests with equal first blocks share those blocks."
    )
    kv_cache_management_mode: Literal["persist", "offload", "recompute"] = Field(
        "persist",
        description="What happens to cached keys and values while the engine sleeps: kept on the device, moved to the host, "
        f"or dropped and computed again; NeMo RL spells the last one {RECOMPUTE_KEY}: true.",
    )
    materialize_only_last_token_logits: bool = Field(
        True, description="Whether logits are computed for the last token of each prompt alone, which saves memory."
    )
    num_speculative_tokens: Annotated[int, AfterValidator(_no_speculation)] = Field(
        0, description="Tokens drafted ahead per step; 0 only, for the reference models have no heads that draft."
    )
    max_requests: int | None = Field(
        None, gt=0, description="Most requests that run at once; null derives it from the buffer and the block size."
    )
    refit_backend: Literal["gloo", "nccl", "nvshmem"] = Field(
        "nccl", description="How weights travel to separate generation workers in NeMo RL; unused within one process."
    )
    expose_http_server: Annotated[bool, AfterValidator(_no_server)] = Field(
        False, description="Whether the engine answers HTTP requests; false only, for this backend serves none yet."
    )
    parsers: list[str] = Field([], description="Names of the response parsers of the HTTP server; unused without it.")
    logging_step_interval: int = Field(
        0, ge=0, description="Engine steps between two lines of statistics; 0 logs none."
    )


class ColocatedConfig(Section):
    """Where rollouts are generated. NeMo RL's `resources` for separate generation are not read."""

    enabled: bool = Field(
        True,
        description="Whether the engine reads the model that is trained, in one process; if not, asynchronous training "
        "generates in a second process, with a copy of the weights.",
    )


class GenerationConfig(Section):
    """How tokens are drawn and when a response ends.

    Temperature divides the logits; top-k is applied before top-p, on what it left, renormalised. The validation values follow
    the training values unless a recipe sets them.
    """

    backend: str = Field("megatron", description="Name under which the generation backend is registered.")
    mode: Literal["direct", "coordinator"] = Field(
        "direct",
        description="Whether the caller steps the engine itself or sends requests to a coordinator; not a NeMo RL key.",
    )
    max_new_tokens: Annotated[int, Follows("${policy.max_total_sequence_length}")] = Field(
        gt=0, description="Most tokens of one response, cut further where prompt and response reach max_model_len."
    )
    temperature: float = Field(1.0, ge=0, description="What logits are divided by before sampling; 0 means greedy.")
    top_p: float = Field(1.0, gt=0, le=1, description="Probability mass that the kept tokens reach; 1.0 keeps all.")
    top_k: TopK = Field(
        None, description="How many tokens are kept, best first; null, 0 and -1 keep all, 1 the best alone."
    )
    val_temperature: Annotated[float, Follows("${.temperature}")] = Field(
        ge=0, description="Temperature of validation rollouts."
    )
    val_top_p: Annotated[float, Follows("${.top_p}")] = Field(gt=0, le=1, description="top_p of validation rollouts.")
    val_top_k: Annotated[TopK, Follows("${.top_k}")] = Field(description="top_k of validation rollouts.")
    stop_token_ids: list[TokenId] | None = Field(
        None, description="Token ids that end a response and are kept as its last token; null adds none."
    )
    stop_strings: list[StopString] | None = Field(
        None, description="Texts that end a response once its tokens spell them; null means none."
    )
    logprobs_mode: Literal["processed_logprobs", "raw_logprobs"] = Field(
        "processed_logprobs",
        description="Whether log-probabilities are taken after temperature, top-k and top-p or before; NeMo RL's Megatron "
        "worker always asks for the former, so the key is not one of its own here.",
    )
    seed: int = Field(
        1234, ge=0, description="Seed of the sampling streams, one per data-parallel rank; not a NeMo RL key."
    )
    reuse_across_updates: bool = Field(
        False,
        description="Whether cached prefixes of an older checkpoint may be used after an update, each with its own epoch "
        "reported; the reference backend's alone; not a NeMo RL key.",
    )
    colocated: Annotated[ColocatedConfig, NULL_IS_EMPTY] = Field(description="Where rollouts are generated.")
    mcore_generation_config: MCoreGenerationConfig = Field(description="The engine's own settings.")


class MegatronConfig(Section):
    """How NeMo RL cuts the model into ranks, and its optimizer. `genref plan` divides by the ranks; here, there is one."""

    # NeMo RL heeds `_override_` in top-level sections alone, and its recipes write it here without effect.
    keys_of_others = frozenset({"_override_", "expert_model_parallel_size", "expert_tensor_parallel_size"})

    tensor_model_parallel_size: int = Field(
        1, gt=0, description="Ranks that share each layer, read by genref plan; the engine here refuses more than 1."
    )
    pipeline_model_parallel_size: int = Field(
        1,
        gt=0,
        description="Ranks that the layers are dealt out to, read by genref plan; the engine here refuses more than 1.",
    )
    optimizer: Annotated[OptimizerConfig, NULL_IS_EMPTY] = Field(
        OptimizerConfig.model_validate({}), description="How gradients change the weights."
    )


class PolicyConfig(Section):
    """The model that is trained and generates, and the section that says how it generates."""

    model_name: str = Field(
        "smollm2", description="Which model is built, by the name that the model registry gives it."
    )
    max_total_sequence_length: int = Field(
        512, gt=0, description="Most tokens of one sequence, prompt and response together, in training and generation."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Type of weights and activations; auto is float32 on a CPU and bfloat16 on CUDA."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto takes CUDA where there is one; not a NeMo RL key."
    )
    train_global_batch_size: int | None = Field(
        None, gt=0, description="Rollouts that one gradient step is made of; null takes all of a training step."
    )
    train_micro_batch_size: int = Field(
        4, gt=0, description="Rollouts whose activations and logits are held at a time; gradients do not depend on it."
    )
    max_grad_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="Norm that the gradient of all weights together is clipped to; null clips nothing."
    )
    megatron_cfg: Annotated[MegatronConfig, NULL_IS_EMPTY] = Field(
        description="How many ranks the model is cut into, and the optimizer."
    )
    generation: GenerationConfig = Field(description="How this policy generates.")


class Recipe(Section):
    """A whole recipe, checked. {func}`reference_impl.config.loader.load_recipe` makes one; nothing changes it afterwards."""

    policy: PolicyConfig = Field(description="The model and how it generates.")
    grpo: Annotated[GrpoConfig, NULL_IS_EMPTY] = Field(description="What a training step is made of.")
    loss_fn: Annotated[LossConfig, NULL_IS_EMPTY] = Field(description="How tokens count in the loss.")
    env: Annotated[EnvConfig, NULL_IS_EMPTY] = Field(description="What the policy is trained on.")
    checkpointing: Annotated[CheckpointingConfig, NULL_IS_EMPTY] = Field(
        description="When a run is written down, to be resumed."
    )

    _explicit: frozenset[str] = PrivateAttr(default=frozenset())
    _others: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def explicit(self) -> frozenset[str]:
        """Dotted keys that somebody chose, as opposed to documented defaults.

        A key counts if the recipe or an override writes it, even with the default's value, or if a parent gives it a value
        that is not the default: a parent that writes out every default chooses nothing.
        """
        return self._explicit

    @property
    def others(self) -> Mapping[str, Any]:
        """What the recipe holds for other readers: dotted keys that this project does not read, with values as written."""
        return self._others

    def model_post_init(self, context: Any) -> None:
        """Keep `explicit` and `others` from the validation context: they are about the recipe, not keys of it."""
        self._explicit = frozenset((context or {}).get("explicit", ()))
        self._others = dict((context or {}).get("others", {}))

    @model_validator(mode="before")
    @classmethod
    def _recompute_by_its_nemo_name(cls, tree: Any) -> Any:
        """Turn the training side's flag into the engine's mode; a mode that contradicts it is left for the check below."""
        mode, section = lookup(tree, MODE_KEY), lookup(tree, MCORE_KEY)
        if lookup(tree, RECOMPUTE_KEY) is True and isinstance(section, dict) and mode in ("persist", MISSING):
            return with_value(tree, MODE_KEY, "recompute")
        return tree

    @model_validator(mode="after")
    def _refuse_two_modes(self) -> "Recipe":
        mode = self.policy.generation.mcore_generation_config.kv_cache_management_mode
        if self.grpo.async_grpo.recompute_kv_cache_after_weight_updates and mode != "recompute":
            text = f"{mode!r} contradicts {RECOMPUTE_KEY}: true; remove one of the two"
            raise PydanticCustomError("recipe", text, {"key": MODE_KEY})
        return self
