"""Which batches get a CUDA graph: the list that megatron-core's `CUDAGraphBatchDimensionBuilder` makes.

`num_cuda_graphs` bounds the number of token counts, not of graphs: where steps with prompts get graphs too, each count
is captured for 1, 2, 4, ... prompts.
"""

import math
from dataclasses import dataclass

from reference_impl.planning.cache import KVCache, Setup

MIXED_TOKENS = 512  # InferenceConfig.cuda_graph_max_tokens, which bounds graphs for steps with prompts
ROUNDER = 2


@dataclass(frozen=True)
class GraphSize:
    """One captured batch: tokens of the step, and how many requests of each kind it holds."""

    tokens: int
    prefill_requests: int
    decode_requests: int


def cuda_graphs(setup: Setup, cache: KVCache) -> tuple[GraphSize, ...]:
    """The graphs that are captured at start, in the order in which they are; empty where the recipe asks for none."""
    config = setup.config
    off = setup.on_cpu or config.cuda_graph_impl == "none" or config.inference_cuda_graph_scope == "none"
    if off or not config.num_cuda_graphs:
        return ()
    return graph_sizes(
        number=config.num_cuda_graphs,
        max_requests=cache.max_requests,
        max_tokens=config.max_tokens,
        max_model_len=config.max_model_len,
        with_prompts=config.use_cuda_graphs_for_non_decode_steps,
        ranks=setup.tensor_parallel,
    )


def graph_sizes(
    *, number: int, max_requests: int, max_tokens: int, max_model_len: int, with_prompts: bool, ranks: int = 1
) -> tuple[GraphSize, ...]:
    """The batches that get a graph, those with most prompt tokens first; a decoding request takes one token."""
    mixed_tokens = min(max(MIXED_TOKENS, max_requests), max_tokens)
    number = min(number, mixed_tokens)
    decoding = {min(count, max_requests) for count in token_counts(number, max_requests, ranks)}
    sizes = {GraphSize(requests // ranks * ranks, 0, requests) for requests in decoding}
    if with_prompts:
        for count in token_counts(number, mixed_tokens, ranks):
            if count >= 2:  # a graph for one prompt of one token cannot be captured
                sizes |= _with_prompts(count, max_requests, max_model_len)
    valid = [size for size in sizes if _is_valid(size, max_requests, max_model_len)]
    return tuple(sorted(valid, key=_prompt_tokens_first, reverse=True))


def token_counts(number: int, most: int, ranks: int = 1) -> list[int]:
    """At most `number` token counts from `most` down, each half of the one before, multiples of `ranks`."""
    largest = most // ranks * ranks
    if number == 1:
        return [largest]
    counts, count = {largest, ranks}, largest
    for _ in range(number):
        rounded = max(ROUNDER, count // ROUNDER * ROUNDER)
        counts.add(math.ceil(rounded / ranks) * ranks)
        count //= 2
        if count < 1:
            break
    falling = sorted(counts, reverse=True)
    # Too many: the smallest stays, those just above it go.
    return falling if len(falling) <= number else [*falling[: number - 1], falling[-1]]


def _prompt_tokens_first(size: GraphSize) -> tuple[int, int, int]:
    return size.tokens - size.decode_requests, size.decode_requests, size.prefill_requests


def _with_prompts(count: int, max_requests: int, max_model_len: int) -> set[GraphSize]:
    """Graphs of `count` tokens for 1, 2, 4, ... prompts beside decoding requests, and one for prompts alone."""
    powers = [2**n for n in range(max_requests.bit_length()) if 2**n < max_requests]
    sizes = {
        GraphSize(count, prompts, max(0, min(count - prompts, max_requests - prompts)))
        for prompts in [*powers, max_requests]
    }
    fewest = max(1, math.ceil(count / max(1, max_model_len - 1)))
    if fewest < max_requests:
        sizes.add(GraphSize(count, max(fewest, min(max_requests, count)), 0))
    return sizes


def _is_valid(size: GraphSize, max_requests: int, max_model_len: int) -> bool:
    """Whether such a batch can exist: enough tokens for its requests, and no prompt longer than a sequence may be."""
    requests = size.prefill_requests + size.decode_requests
    longest = size.prefill_requests * max_model_len + size.decode_requests
    return size.tokens > 0 and requests <= max_requests and requests <= size.tokens <= longest
