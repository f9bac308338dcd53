"""One row of a batch as a request to Megatron's engine, and what that engine's context can hold."""

from typing import Any

from megatron.core.inference.sampling_params import SamplingParams

from reference_impl.config.schema import GenerationConfig
from reference_impl.generation.megatron.stopping import STOP_IDS, STOP_STRINGS
from reference_impl.generation.rows import Limits, Row

TAG = "tag"
"""Attribute of `SamplingParams` by which a request is found again: the coordinator gives out ids of its own."""


def limits_of(context: Any, vocab_size: int) -> Limits:
    """Read the limits off a `DynamicInferenceContext`."""
    return Limits(
        max_model_len=context.max_sequence_length,
        max_tokens=context.max_tokens,
        chunked_prefill=context.enable_chunked_prefill,
        block_size_tokens=context.block_size_tokens,
        block_size_bytes=context.block_size_bytes,
        usable_blocks=context.kv_block_allocator.total_count - 1,  # one block takes what padding rows write
        vocab_size=vocab_size,
    )


def sampling_params(row: Row, config: GenerationConfig, *, greedy: bool) -> SamplingParams:
    """Megatron's `SamplingParams` for one request.

    Off is `top_k=0` and `top_p=0.0` to Megatron; greedy is temperature 0 with `top_k=1`. `termination_id` is -1 because
    {py:class}`~reference_impl.generation.megatron.stopping.StopRule` decides what stops.
    """
    greedy = greedy or config.temperature == 0.0
    params = SamplingParams(
        temperature=0.0 if greedy else float(config.temperature),
        top_k=1 if greedy else config.top_k or 0,
        top_p=0.0 if greedy or config.top_p == 1.0 else float(config.top_p),
        return_log_probs=True,
        skip_prompt_log_probs=True,
        num_tokens_to_generate=row.limit,
        termination_id=-1,
    )
    params.add_attributes({STOP_IDS: row.stops.token_ids, STOP_STRINGS: row.stops.strings, TAG: row.tag})
    return params
