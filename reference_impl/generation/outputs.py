"""Finished sequences as the contract's output: `Completion`s in, a `GenerationOutputSpec` batch out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.staleness.records import RequestRecord

PAD = 0
"""What fills `output_ids` after a sequence; lengths, not this value, say where a sequence ends."""


@dataclass(frozen=True)
class Completion:
    """One finished response. `record` holds its epochs and what happened to its cache, `upstream` the epochs as the engine
    itself stamped them; both cover prompt and response, and are `None` where nothing was stamped. `prompt_logprobs` are those
    of the prompt's tokens, 0.0 for the first, where they were asked for."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    record: RequestRecord | None = None
    upstream: RequestRecord | None = None
    truncated: bool = False
    error: str | None = None
    prompt_logprobs: list[float] | None = None


def to_output(prompts: Sequence[list[int]], completions: Sequence[Completion]) -> BatchedDataDict:
    """A batch as {py:class}`~reference_impl.generation.interfaces.GenerationOutputSpec` describes it.

    The prompt in the output is the one that was submitted, whatever the engine echoes.
    """
    done = list(zip(prompts, completions, strict=True))
    columns = {}
    if any(c.prompt_logprobs for c in completions):
        columns["prompt_logprobs"] = right_padded(
            [c.prompt_logprobs or [0.0] * len(p) for p, c in done], 0.0, torch.float32
        )
    return BatchedDataDict(
        **columns,
        output_ids=right_padded([[*prompt, *c.token_ids] for prompt, c in done], PAD, torch.int64),
        logprobs=right_padded([[0.0] * len(prompt) + c.logprobs for prompt, c in done], 0.0, torch.float32),
        generation_lengths=torch.tensor([len(c.token_ids) for c in completions], dtype=torch.int64),
        unpadded_sequence_lengths=torch.tensor([len(p) + len(c.token_ids) for p, c in done], dtype=torch.int64),
        truncated=torch.tensor([c.truncated for c in completions], dtype=torch.bool),
        policy_epoch=[c.record and c.record.policy_epoch for c in completions],
        kv_cache_epoch=[c.record and c.record.kv_cache_epoch for c in completions],
        num_evictions=torch.tensor(
            [(c.record and c.record.num_evictions) or 0 for c in completions], dtype=torch.int64
        ),
        staleness=[c.record for c in completions],
        upstream_staleness=[c.upstream for c in completions],
        errors=[c.error for c in completions],
    )
