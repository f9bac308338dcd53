"""Batches and backends for tests, made the way a user makes them."""

from typing import Any

import torch

from reference_impl.config.loader import load_recipe
from reference_impl.generation.batch import BatchedDataDict, right_padded

MCORE = "policy.generation.mcore_generation_config"

SMALL = {
    "buffer_size_gb": 0.001,
    "block_size_tokens": 4,
    "max_requests": 128,
    "max_tokens": 256,
    "enable_chunked_prefill": True,
}


def prompts(*rows: list[int], pad: int = 0, **columns: Any) -> BatchedDataDict:
    """A batch of prompts."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    return BatchedDataDict(input_ids=right_padded(rows, pad, torch.int64), input_lengths=lengths, **columns)


def recipe(model: str = "tiny", length: int = 64, mcore: dict[str, Any] | None = None, **generation: Any):
    """A validated recipe: `generation` keys and `mcore` keys over small settings."""
    import json

    settings = {f"{MCORE}.{key}": value for key, value in (SMALL | (mcore or {})).items()}
    settings |= {f"policy.generation.{key}": value for key, value in generation.items()}
    settings |= {"policy.model_name": model, "policy.max_total_sequence_length": length}
    return load_recipe(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()])


def responses(output: BatchedDataDict) -> list[list[int]]:
    """Generated ids of each row."""
    ends = output["unpadded_sequence_lengths"].tolist()
    starts = [end - length for end, length in zip(ends, output["generation_lengths"].tolist(), strict=True)]
    return [
        output["output_ids"][i, start:end].tolist() for i, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def response_logprobs(output: BatchedDataDict) -> list[list[float]]:
    """Log-probabilities of the generated ids of each row."""
    ends = output["unpadded_sequence_lengths"].tolist()
    starts = [end - length for end, length in zip(ends, output["generation_lengths"].tolist(), strict=True)]
    return [output["logprobs"][i, start:end].tolist() for i, (start, end) in enumerate(zip(starts, ends, strict=True))]


def tokens_of(*numbers: int) -> list[list[int]]:
    """Prompts of the given lengths; equal lengths are equal prompts."""
    return [[(7 * length + i) % 250 for i in range(length)] for length in numbers]
