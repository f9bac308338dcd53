"""A random Llama of two layers for tests of the engine: real context dependence, and a step takes a millisecond."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from support.batches import recipe
from torch import Tensor

from reference_impl.generation.reference.backend import ReferenceGeneration
from reference_impl.models.checkpoints import perturbed
from reference_impl.models.llama import LlamaShape, megatron_from_hf
from reference_impl.models.tiny import random_weights

VOCABULARY = 64

SHAPE = LlamaShape(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_word_embeddings=False,
    max_position_embeddings=512,
)


def hf_weights() -> dict[str, Tensor]:
    """Weights under Hugging Face names, the same every time."""
    return random_weights(SHAPE, seed=5)


@cache
def checkpoint(number: int) -> dict[str, Tensor]:
    """Megatron-named weights of one of several checkpoints, far enough apart that greedy tokens differ."""
    return perturbed(dict(megatron_from_hf(hf_weights(), SHAPE)), number, strength=0.3)


class Shared(dict):
    """Parameters as a `GPTModel` would hold them, without one."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.items())

    def parameters(self) -> Iterator[Tensor]:
        return iter(self.values())


def shared(number: int = 0, dtype: torch.dtype = torch.float32) -> Shared:
    """A copy of a checkpoint that a test may change in place."""
    return Shared({name: tensor.to(dtype, copy=True) for name, tensor in checkpoint(number).items()})


def buffer_of(blocks: int, size: int, shape: LlamaShape = SHAPE) -> float:
    """`buffer_size_gb` for so many usable blocks of `size` tokens: keys and values, float32, and the reserved block."""
    block = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * 4 * size
    return (blocks + 1.5) * block / 2**30


def engine(
    *, blocks: int | None = None, model: Any = None, shape: LlamaShape = SHAPE, tokenizer: Any = None, **settings: Any
) -> ReferenceGeneration:
    """A running backend; `blocks` is how many blocks requests can hold, `settings` are those of `recipe`."""
    mcore = dict(settings.pop("mcore", {}))
    if blocks is not None:
        mcore["buffer_size_gb"] = buffer_of(blocks, mcore.get("block_size_tokens", 4), shape)
    made = recipe(mcore=mcore, **{"stop_token_ids": [], **settings})
    model = shared() if model is None else model
    backend = ReferenceGeneration(made, model=model, shape=shape, tokenizer=tokenizer)
    backend.prepare_for_generation()
    return backend
