"""Decode speed of a backend against `transformers.generate` on the same weights, prompts and lengths, turn by turn.

Decode is tokens per second between the `WARM`th and the last token of each sequence, prefill left out. Prompts are random
tokens, greedy, without a stop, so that both decode the same number of tokens.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reference_impl.generation.batch import BatchedDataDict
from reference_impl.generation.interfaces import GenerationInterface, Progress

PROMPT_TOKENS, NEW_TOKENS, WARM = 64, 36, 4


@dataclass(frozen=True)
class Comparison:
    """Tokens per second of every round, ours and the peer's, at one batch size."""

    batch: int
    ours: list[float]
    peer: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, round by round."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=True)]

    def line(self) -> str:
        """One line: medians, the median ratio and its range."""
        ours, peer, ratio = (statistics.median(values) for values in (self.ours, self.peer, self.ratios))
        low, high = min(self.ratios), max(self.ratios)
        return (
            f"batch {self.batch:3d}: {ours:7.1f} tok/s, peer {peer:7.1f}, ratio {ratio:.2f} ({low:.2f} to {high:.2f})"
        )


def compare(
    backend: GenerationInterface, peer: Any, vocab_size: int, batches: Sequence[int], rounds: int
) -> list[Comparison]:
    """Measure each batch size `rounds` times after one round that is not counted; `peer` is a transformers model."""
    generator, results = torch.Generator().manual_seed(0), []
    for batch in batches:
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(rounds + 1):
            ids = torch.randint(vocab_size, (batch, PROMPT_TOKENS), generator=generator)
            ours.append(rate(batch, backend_times(backend, ids)))
            theirs.append(rate(batch, transformers_times(peer, ids)))
        results.append(Comparison(batch, ours[1:], theirs[1:]))
    return results


def rate(batch: int, times: list[float]) -> float:
    """Tokens per second from the times at which each step's tokens were there."""
    return batch * (len(times) - WARM) / (times[-1] - times[WARM - 1])


def backend_times(backend: GenerationInterface, ids: torch.Tensor) -> list[float]:
    """Time after each of the backend's decode steps, first token first."""
    data = BatchedDataDict(input_ids=ids, input_lengths=torch.full((len(ids),), ids.shape[1]))
    times, tokens = [], 0
    for event in backend.stream(data, greedy=True):
        if isinstance(event, Progress) and event.sampled_tokens > tokens:
            tokens = event.sampled_tokens
            times.append(time.perf_counter())
    return [*times, time.perf_counter()]  # the last step ends the stream


def transformers_times(model: Any, ids: torch.Tensor) -> list[float]:
    """Time at which transformers has each step's logits, and its end."""
    from transformers import LogitsProcessor

    times: list[float] = []

    class Clock(LogitsProcessor):
        def __call__(self, input_ids, scores):
            times.append(time.perf_counter())
            return scores

    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
        logits_processor=[Clock()],
    )
    return times
