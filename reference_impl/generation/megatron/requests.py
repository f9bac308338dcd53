"""One row of a batch as a request to Megatron's engine, or the one line that says why it cannot be one."""

import math
from dataclasses import dataclass
from typing import Any

from megatron.core.inference.sampling_params import SamplingParams

from reference_impl.config.schema import GenerationConfig
from reference_impl.generation.megatron.stopping import STOP_IDS, STOP_STRINGS, Stops

TAG = "tag"
"""Attribute of `SamplingParams` by which a request is found again: the coordinator gives out ids of its own."""


@dataclass(frozen=True)
class Limits:
    """What the engine's context can hold."""

    max_model_len: int
    max_tokens: int
    chunked_prefill: bool
    block_size_tokens: int
    block_size_bytes: int
    usable_blocks: int
    vocab_size: int

    @classmethod
    def of(cls, context: Any, vocab_size: int) -> "Limits":
        """Read the limits off a `DynamicInferenceContext`."""
        return cls(
            max_model_len=context.max_sequence_length,
            max_tokens=context.max_tokens,
            chunked_prefill=context.enable_chunked_prefill,
            block_size_tokens=context.block_size_tokens,
            block_size_bytes=context.block_size_bytes,
            usable_blocks=context.kv_block_allocator.total_count - 1,  # one block takes what padding rows write
            vocab_size=vocab_size,
        )


def tokens_to_generate(prompt: list[int], config: GenerationConfig, limits: Limits) -> int:
    """`max_new_tokens`, clamped to what the context has left after the prompt."""
    return min(config.max_new_tokens, limits.max_model_len - len(prompt))


def why_refused(prompt: list[int], config: GenerationConfig, limits: Limits) -> str | None:
    """The reason why this prompt cannot be generated for, or `None`. The other rows of the batch are not affected."""
    if not prompt:
        return "the prompt is empty; at least one token is needed"
    for position, token in enumerate(prompt):
        if not 0 <= token < limits.vocab_size:
            return f"token {token} at position {position} is outside the vocabulary of {limits.vocab_size}"
    if len(prompt) > limits.max_model_len:
        return f"the prompt has {len(prompt)} tokens, more than max_model_len: {limits.max_model_len}"
    if len(prompt) > limits.max_tokens and not limits.chunked_prefill:
        return (
            f"the prompt has {len(prompt)} tokens, more than max_tokens: {limits.max_tokens} of one step; "
            "raise max_tokens or set enable_chunked_prefill: true"
        )
    total = len(prompt) + tokens_to_generate(prompt, config, limits)
    blocks = math.ceil(total / limits.block_size_tokens)
    if blocks > limits.usable_blocks:
        # The engine keeps one block for itself, so that is part of what the buffer must hold.
        need = (blocks + 1) * limits.block_size_bytes / 2**30
        return (
            f"{total} tokens need {blocks} KV blocks of {limits.block_size_tokens}, the buffer has {limits.usable_blocks}; "
            f"set buffer_size_gb to {math.ceil(need * 1e4) / 1e4:g} or more"
        )
    return None


def sampling_params(
    prompt: list[int],
    config: GenerationConfig,
    limits: Limits,
    *,
    stops: Stops,
    greedy: bool,
    tag: str = "",
) -> SamplingParams:
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
        num_tokens_to_generate=tokens_to_generate(prompt, config, limits),
        termination_id=-1,
    )
    params.add_attributes({STOP_IDS: stops.token_ids, STOP_STRINGS: stops.strings, TAG: tag})
    return params
