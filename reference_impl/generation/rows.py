"""One row of a batch: what is generated for, how far, what stops it, and the one line that says why it cannot be."""

import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from reference_impl.config.schema import GenerationConfig
from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import verify_lengths
from reference_impl.generation.stops import Stops


@dataclass(frozen=True)
class Row:
    """One sequence of a batch: its prompt, the most tokens it may get, what stops it, and a tag to find it by."""

    prompt: list[int]
    limit: int
    stops: Stops
    prompt_logprobs: bool = False
    tag: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Limits:
    """What an engine can hold.

    `unread_tokens` is 1 for an engine that never stores the last sampled token, which no forward pass reads; upstream
    counts it as stored, and so needs one block more where a sequence ends just past a block's edge.
    """

    max_model_len: int
    max_tokens: int
    chunked_prefill: bool
    block_size_tokens: int
    block_size_bytes: int
    usable_blocks: int
    vocab_size: int
    unread_tokens: int = 0


def rows_of(
    data: BatchedDataDict, config: GenerationConfig, limits: Limits, stops: Callable[[list[str] | None], Stops]
) -> list[Row]:
    """Take a batch apart; `stops` makes a row's from its own stop strings. Raises `ValueError` for what is wrong with the
    batch as a whole."""
    verify_lengths(data["input_ids"], data["input_lengths"])
    lengths = data["input_lengths"].tolist()
    columns = {}
    for name in ("stop_strings", "prompt_logprobs"):
        columns[name] = data.get(name) or [None] * len(lengths)
        if len(columns[name]) != len(lengths):
            raise ValueError(
                f"{name} has {len(columns[name])} entries, expected one for each of {len(lengths)} sequences"
            )
    rows = []
    for index, (ids, length) in enumerate(zip(data["input_ids"].tolist(), lengths, strict=True)):
        prompt, limit = ids[:length], tokens_to_generate(ids[:length], config, limits)
        wanted = bool(columns["prompt_logprobs"][index])
        rows.append(Row(prompt, limit, stops(columns["stop_strings"][index]), wanted))
    return rows


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
    total = len(prompt) + tokens_to_generate(prompt, config, limits) - limits.unread_tokens
    blocks = math.ceil(total / limits.block_size_tokens)
    if blocks > limits.usable_blocks:
        # The engine keeps one block for itself, so that is part of what the buffer must hold.
        need = (blocks + 1) * limits.block_size_bytes / 2**30
        return (
            f"{total} tokens need {blocks} KV blocks of {limits.block_size_tokens}, the buffer has {limits.usable_blocks}; "
            f"set buffer_size_gb to {math.ceil(need * 1e4) / 1e4:g} or more"
        )
    return None
