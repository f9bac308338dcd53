"""Finished sequences as the contract's output: `Completion`s in, a `GenerationOutputSpec` batch out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.staleness.epochs import EpochRuns

PAD = 0
"""What fills `output_ids` after a sequence; lengths, not this value, say where a sequence ends."""


@dataclass(frozen=True)
class Completion:
    """One finished response. Epochs cover prompt and response; they are `None` where nothing was stamped."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy: EpochRuns | None = None
    kv: EpochRuns | None = None
    num_evictions: int = 0
    truncated: bool = False
    error: str | None = None


def to_output(prompts: Sequence[list[int]], completions: Sequence[Completion]) -> BatchedDataDict:
    """A batch as {py:class}`~reference_impl.generation.interfaces.GenerationOutputSpec` describes it.

    The prompt in the output is the one that was submitted, whatever the engine echoes.
    """
    done = list(zip(prompts, completions, strict=True))
    return BatchedDataDict(
        output_ids=right_padded([[*prompt, *c.token_ids] for prompt, c in done], PAD, torch.int64),
        logprobs=right_padded([[0.0] * len(prompt) + c.logprobs for prompt, c in done], 0.0, torch.float32),
        generation_lengths=torch.tensor([len(c.token_ids) for c in completions], dtype=torch.int64),
        unpadded_sequence_lengths=torch.tensor([len(p) + len(c.token_ids) for p, c in done], dtype=torch.int64),
        truncated=torch.tensor([c.truncated for c in completions], dtype=torch.bool),
        policy_epoch=[c.policy for c in completions],
        kv_cache_epoch=[c.kv for c in completions],
        num_evictions=torch.tensor([c.num_evictions for c in completions], dtype=torch.int64),
        errors=[c.error for c in completions],
    )
