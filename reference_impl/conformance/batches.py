"""Batches for checks: prompts in, responses out, and a batch that is generated with something happening on the way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from reference_impl.conformance.expect import equal, hold
from reference_impl.generation.batch import BatchedDataDict, right_padded
from reference_impl.generation.interfaces import GenerationInterface, Progress

PROMPT = list(b"The capital of France is")


def prompts(*rows: Sequence[int], pad: int = 0, **columns: Any) -> BatchedDataDict:
    """A batch of prompts."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return BatchedDataDict(input_ids=right_padded(rows, pad, torch.int64), input_lengths=lengths, **columns)


def of_lengths(*lengths: int) -> list[list[int]]:
    """Prompts for `tiny` of these lengths; equal lengths are equal prompts."""
    return [[(7 * length + i) % 250 for i in range(length)] for length in lengths]


def _generated(output: BatchedDataDict, column: str) -> list[list[Any]]:
    ends = output["unpadded_sequence_lengths"].tolist()
    starts = [end - length for end, length in zip(ends, output["generation_lengths"].tolist(), strict=True)]
    rows = output[column].tolist()
    return [row[start:end] for row, start, end in zip(rows, starts, ends, strict=True)]


def responses(output: BatchedDataDict) -> list[list[int]]:
    """Generated ids of each row."""
    return _generated(output, "output_ids")


def response_logprobs(output: BatchedDataDict) -> list[list[float]]:
    """Log-probabilities of the generated ids of each row."""
    return _generated(output, "logprobs")


def greedy(backend: GenerationInterface, *rows: Sequence[int], **columns: Any) -> list[list[int]]:
    """The responses to a greedy batch."""
    return responses(backend.generate(prompts(*rows, **columns), greedy=True))


def finish(
    backend: GenerationInterface,
    *rows: Sequence[int],
    at: Mapping[int, Callable[[], Any]] | None = None,
    look: Callable[[], Any] | None = None,
    greedy: bool = True,
) -> list[BatchedDataDict]:
    """Stream a batch to its end, and return a one-row output for each row.

    `at[n]` is called once, between two steps, as soon as `n` tokens or more of the batch are sampled; `look` at each look.
    """
    left, ended = sorted((at or {}).items()), {}
    for event in backend.stream(prompts(*rows), greedy):
        if not isinstance(event, Progress):
            hold(event[0] not in ended, f"row {event[0]} ended twice")
            ended[event[0]] = event[1]
            continue
        while left and event.sampled_tokens >= left[0][0]:
            left.pop(0)[1]()
        if look:
            look()
    equal(sorted(ended), list(range(len(rows))), "rows that a stream ended")
    hold(not left, f"the stream showed no look with {left[0][0] if left else 0} tokens sampled")
    return [ended[index] for index in range(len(rows))]
