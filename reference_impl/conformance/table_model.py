"""A Llama whose next-token logits are a table that a check writes down: logits[last token] = table row.

The embedding is the identity, attention and MLP add nothing to the residual, and the output layer undoes the final
RMSNorm's scale. So every expected token and log-probability follows from the table by hand, through any real engine.
"""

import torch
from torch import Tensor

from reference_impl.models.llama import LlamaShape

VOCABULARY = 16

SHAPE = LlamaShape(
    vocab_size=VOCABULARY,
    hidden_size=VOCABULARY,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    tie_word_embeddings=False,
    max_position_embeddings=512,
)


def weights_for(table: Tensor) -> dict[str, Tensor]:
    """Hugging Face-named weights with which the logits after token t are `table[t]`; `table` is [16, 16]."""
    weights = {name: torch.zeros(size) for name, size in SHAPE.weight_shapes().items()}
    for name in weights:
        if "norm" in name:
            weights[name] = torch.ones(SHAPE.hidden_size)
    weights["model.embed_tokens.weight"] = torch.eye(VOCABULARY)
    norm = (1 / SHAPE.hidden_size + SHAPE.rms_norm_eps) ** 0.5  # root mean square of a unit vector
    weights["lm_head.weight"] = table.T * norm
    return weights


def chain(*tokens: int, strength: float = 20.0) -> Tensor:
    """A table in which each of `tokens` is followed by the next one (and the last by itself), greedily."""
    table = torch.zeros(VOCABULARY, VOCABULARY)
    for here, there in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        table[here] = 0.0
        table[here, there] = strength
    return table


def row(**logits: float) -> Tensor:
    """A table whose every row has the given logits (`t3=2.0` for token 3) and almost nothing elsewhere."""
    values = torch.full((VOCABULARY,), -1e4)
    for name, value in logits.items():
        values[int(name[1:])] = value
    return values.expand(VOCABULARY, VOCABULARY).clone()


class Digits:
    """A tokenizer of 16 tokens: token t reads as the letter t of 'abcdefghijklmnop'; token 0 ends a sequence."""

    eos_token_id, pad_token_id, chat_template = 0, 0, None

    def encode(self, text: str) -> list[int]:
        """The tokens of the letters of `text`."""
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """A letter a token."""
        return "".join(chr(ord("a") + token) for token in token_ids)
