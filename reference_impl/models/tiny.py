"""`tiny`: a seeded random Llama of about a million parameters and a tokenizer of bytes. Nothing is downloaded.

Its text means nothing, but everything else about it is real: grouped queries, tied embeddings, RoPE, a context of 1024.
"""

from dataclasses import asdict

import torch
from torch import Tensor

from reference_impl.models.llama import LlamaShape
from reference_impl.models.shapes import SHAPES

SEED = 20_26

# The vocabulary is 256 bytes and three specials, padded to a multiple of 8.
SHAPE = LlamaShape(**asdict(SHAPES["tiny"]), rms_norm_eps=1e-5, rope_theta=10_000.0, max_position_embeddings=1024)


def random_weights(shape: LlamaShape = SHAPE, seed: int = SEED) -> dict[str, Tensor]:
    """Weights under Hugging Face names, the same for the same seed on every machine.

    Norms are ones; matrices are normal with a deviation of `fan_in ** -0.5`, which keeps the scale of activations from
    layer to layer, and embeddings of 1, so that logits of a tied model spread enough for greedy choices to be clear.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shape.weight_shapes().items():
        if len(size) == 1:
            weights[name] = torch.ones(size)
        else:
            deviation = 0.5 if name == "model.embed_tokens.weight" else size[1] ** -0.5
            weights[name] = torch.randn(size, generator=generator) * deviation
    return weights


class ByteTokenizer:
    """Token i below 256 is the byte i; then beginning, end and padding. The rest of the vocabulary decodes to nothing."""

    bos_token_id, eos_token_id, pad_token_id = 256, 257, 258
    vocab_size = SHAPE.vocab_size
    chat_template = None

    def encode(self, text: str) -> list[int]:
        """The bytes of `text` in UTF-8."""
        return list(text.encode())

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of the bytes among `token_ids`; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token for token in token_ids if token < 256).decode(errors="replace")
