"""The KV cache: bytes of a block, blocks of the buffer, and the number of requests that follows from them."""

from dataclasses import dataclass

from reference_impl.config.errors import ConfigError
from reference_impl.config.schema import MCORE_KEY, MCoreGenerationConfig, Recipe
from reference_impl.models.shapes import ModelShape

GIB = 2**30
REQUEST_ROUNDER = 4  # megatron-core rounds a derived max_requests down to a multiple of it
VALUE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Setup:
    """All that a plan follows from: the engine's settings, the model's sizes, and how it lies on one rank.

    `dtype`
    : `float32` or `bfloat16`, of weights, cache and logits.

    `tensor_parallel`, `pipeline_parallel`
    : Ranks among which heads and matrices are divided, and those that the layers are dealt out to.

    `on_cpu`
    : Whether the recipe asks for a CPU, where there are no CUDA graphs.
    """

    config: MCoreGenerationConfig
    shape: ModelShape
    dtype: str = "bfloat16"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    on_cpu: bool = False

    @classmethod
    def of(cls, recipe: Recipe, shape: ModelShape) -> "Setup":
        """A recipe's setup; `precision: auto` is float32 with `device: cpu`, else bfloat16, for plans are about GPUs."""
        policy = recipe.policy
        on_cpu = policy.device == "cpu"
        auto = "float32" if on_cpu else "bfloat16"
        ranks = policy.megatron_cfg.tensor_model_parallel_size
        stages = policy.megatron_cfg.pipeline_model_parallel_size
        refuse_uneven(shape, ranks, stages)
        dtype = auto if policy.precision == "auto" else policy.precision
        return cls(policy.generation.mcore_generation_config, shape, dtype, ranks, stages, on_cpu)

    @property
    def value_bytes(self) -> int:
        """Bytes of one number in `dtype`."""
        return VALUE_BYTES[self.dtype]


@dataclass(frozen=True)
class KVCache:
    """The cache of one rank.

    `block_bytes`, `block_tokens`
    : One block: keys and values of all layers for so many tokens.

    `total_blocks`, `active_blocks`, `paused_blocks`
    : Blocks that are allocated; those that running requests may hold, one less, for padding writes into the last; and
      those kept for paused requests, which no key of a recipe asks for.

    `host_bytes`
    : Pinned host memory that `kv_cache_management_mode: offload` allocates for a copy.

    `max_requests`, `max_requests_key`
    : Most requests in the context, and the key that decides it.
    """

    block_bytes: int
    block_tokens: int
    total_blocks: int
    active_blocks: int
    paused_blocks: int
    host_bytes: int
    max_requests: int
    max_requests_key: str

    @property
    def total_bytes(self) -> int:
        """Device memory of all blocks: `buffer_size_gb`, less what is over after the last whole block."""
        return self.total_blocks * self.block_bytes

    @property
    def active_tokens(self) -> int:
        """Tokens that running requests can have cached, all together."""
        return self.active_blocks * self.block_tokens


def kv_cache(setup: Setup) -> KVCache:
    """The cache as `DynamicInferenceContext` allocates it; raises `ConfigError` where that refuses `max_requests`."""
    config = setup.config
    block = block_bytes(setup)
    # At least one block to use beside the engine's own, even where the buffer is smaller than that.
    total = max(2, int(config.buffer_size_gb * GIB) // block)
    requests, key = max_requests(setup, total)
    return KVCache(
        block_bytes=block,
        block_tokens=config.block_size_tokens,
        total_blocks=total,
        active_blocks=total - 1,
        paused_blocks=0,
        host_bytes=total * block if config.kv_cache_management_mode == "offload" else 0,
        max_requests=requests,
        max_requests_key=key,
    )


def block_bytes(setup: Setup) -> int:
    """Bytes of one block on one rank: K and V, the rank's layers and KV heads, head size, bytes of a number, tokens."""
    layers = setup.shape.num_hidden_layers // setup.pipeline_parallel
    heads = setup.shape.kv_heads_per_rank(setup.tensor_parallel)
    per_token = 2 * layers * heads * setup.shape.head_dim * setup.value_bytes
    return per_token * setup.config.block_size_tokens


def max_requests(setup: Setup, total_blocks: int) -> tuple[int, str]:
    """`max_requests` and the key that decides it.

    Unset, it is one request a block, rounded down to multiples of the ranks and of four, and at most `max_tokens`.
    """
    config, ranks = setup.config, setup.tensor_parallel
    if config.max_requests is not None:
        requests, key = config.max_requests, "max_requests"
        if requests > config.max_tokens:
            raise ConfigError(
                f"{MCORE_KEY}.max_requests: {requests} is more than max_tokens: {config.max_tokens}; "
                "a decode step takes one token of each request"
            )
    else:
        rounded = (total_blocks - 1) // ranks * ranks // REQUEST_ROUNDER * REQUEST_ROUNDER
        requests, key = max(rounded, ranks), "buffer_size_gb"
        if requests > config.max_tokens:
            requests, key = max(config.max_tokens // ranks * ranks, ranks), "max_tokens"
    if requests % ranks:
        raise ConfigError(
            f"{MCORE_KEY}.max_requests: {requests} is not a multiple of tensor_model_parallel_size: {ranks}"
        )
    return requests, key


def refuse_uneven(shape: ModelShape, ranks: int, stages: int) -> None:
    """Raise `ConfigError` where a model's heads or layers cannot be divided evenly."""
    heads, groups, layers = shape.num_attention_heads, shape.num_key_value_heads, shape.num_hidden_layers
    if heads % ranks or (groups % ranks if groups >= ranks else ranks % groups):
        raise ConfigError(
            f"policy.megatron_cfg.tensor_model_parallel_size: {ranks} does not divide the model's "
            f"{heads} query and {groups} key-value heads"
        )
    if layers % stages:
        raise ConfigError(
            f"policy.megatron_cfg.pipeline_model_parallel_size: {stages} does not divide the model's {layers} layers"
        )
