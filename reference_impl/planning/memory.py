"""Device memory that a recipe fixes: weights, cache, logits and the engine's own tables, of one rank."""

from dataclasses import dataclass

from reference_impl.planning.cache import KVCache, Setup


@dataclass(frozen=True)
class Memory:
    """Bytes on the device.

    `parameters`, `weights`
    : Parameters of the rank, and their bytes.

    `cache`
    : All blocks.

    `logits_rows`, `logits_row_bytes`, `logits_copies`
    : Rows of one step's logits, bytes of a row (the whole vocabulary), and how often they are held: CUDA graphs need a
      buffer of their own beside what the step computes.

    `tables`
    : What the context keeps for each token of a step and for each request: ids, positions, lengths, block numbers.
    """

    parameters: int
    weights: int
    cache: int
    logits_rows: int
    logits_row_bytes: int
    logits_copies: int
    tables: int

    @property
    def logits(self) -> int:
        """Bytes of all logits that are held at once."""
        return self.logits_rows * self.logits_row_bytes * self.logits_copies

    @property
    def total(self) -> int:
        """The sum of what is counted here."""
        return self.weights + self.cache + self.logits + self.tables


def memory(setup: Setup, cache: KVCache) -> Memory:
    """What weights, cache, logits and tables take, at most, on the rank that holds most."""
    config, shape = setup.config, setup.shape
    parameters = shape.parameters(setup.tensor_parallel, setup.pipeline_parallel)
    with_graphs = config.cuda_graph_impl == "local" and not setup.on_cpu
    return Memory(
        parameters=parameters,
        weights=parameters * setup.value_bytes,
        cache=cache.total_bytes,
        logits_rows=cache.max_requests if config.materialize_only_last_token_logits else config.max_tokens,
        logits_row_bytes=shape.vocab_size * setup.value_bytes,
        logits_copies=2 if with_graphs else 1,
        tables=table_bytes(setup, cache.max_requests),
    )


def table_bytes(setup: Setup, max_requests: int) -> int:
    """Bytes of the context's per-step tables (`ContextGPUView` and the rows of the logits), without the padding."""
    config = setup.config
    blocks_of_longest = -(-config.max_model_len // config.block_size_tokens)
    a_token = 3 * 8 + 3 * 4
    # Seven fields of the sampler and scheduler, four of attention, two lists of logits rows, and the block table.
    a_request = (7 + 4 + 2 + blocks_of_longest) * 4
    # The number of real tokens, and the extra entry of the two cumulative lists.
    return config.max_tokens * a_token + max_requests * a_request + 3 * 4
