"""Sizes of decoders, by name or from a `config.json`, without torch and without the weights.

What a cache and the weights take follows from a few numbers, also for models that this project does not build: grouped
queries, SwiGLU and RMSNorm are assumed, which is Llama, Mistral and Qwen.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference_impl.config.errors import ConfigError, nearest

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, named as in a Hugging Face `config.json`; the last two are what Qwen adds to Llama.

    `qkv_bias` is Qwen2's, on queries, keys and values alone; `qk_norm` is Qwen3's, a norm of `head_dim` weights for the
    queries and one for the keys of each layer.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False

    def kv_heads_per_rank(self, tensor_parallel: int = 1) -> int:
        """Key-value heads that one rank holds: their share, or one where there are fewer heads than ranks."""
        return max(self.num_key_value_heads // tensor_parallel, 1)

    def parameters(self, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> int:
        """Parameters that one rank holds, the fullest one where ranks differ.

        Matrices are divided among the tensor-parallel ranks, norms are not. The last pipeline stage holds the output
        matrix, a copy of the embedding where the two are tied, and the embedding itself only if there is no other stage.
        """
        hidden, dim = self.hidden_size, self.head_dim
        query = self.num_attention_heads // tensor_parallel * dim
        key_value = self.kv_heads_per_rank(tensor_parallel) * dim
        attention = 2 * hidden * query + 2 * hidden * key_value
        bias = query + 2 * key_value if self.qkv_bias else 0
        feed_forward = 3 * hidden * (self.intermediate_size // tensor_parallel)
        norms = 2 * hidden + (2 * dim if self.qk_norm else 0)
        layers = self.num_hidden_layers // pipeline_parallel
        matrices = 1 if self.tie_word_embeddings or pipeline_parallel > 1 else 2
        vocabulary = matrices * -(-self.vocab_size // tensor_parallel) * hidden
        return vocabulary + layers * (attention + bias + feed_forward + norms) + hidden


# Vocabulary, hidden, feed-forward, layers, query heads, key-value heads, head size, tied embeddings.
SHAPES = {
    "tiny": ModelShape(264, 128, 384, 5, 4, 2, 32, True),
    "smollm2": ModelShape(49152, 576, 1536, 30, 9, 3, 64, True),
    "meta-llama/Llama-3.2-1B": ModelShape(128256, 2048, 8192, 16, 32, 8, 64, True),
    "meta-llama/Llama-3.2-3B": ModelShape(128256, 3072, 8192, 28, 24, 8, 128, True),
    "meta-llama/Llama-3.1-8B": ModelShape(128256, 4096, 14336, 32, 32, 8, 128, False),
    "meta-llama/Llama-3.1-70B": ModelShape(128256, 8192, 28672, 80, 64, 8, 128, False),
    "Qwen/Qwen2.5-0.5B": ModelShape(151936, 896, 4864, 24, 14, 2, 64, True, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B": ModelShape(151936, 1536, 8960, 28, 12, 2, 128, True, qkv_bias=True),
    "Qwen/Qwen2.5-3B": ModelShape(151936, 2048, 11008, 36, 16, 2, 128, True, qkv_bias=True),
    "Qwen/Qwen2.5-7B": ModelShape(152064, 3584, 18944, 28, 28, 4, 128, False, qkv_bias=True),
    "Qwen/Qwen3-0.6B": ModelShape(151936, 1024, 3072, 28, 16, 8, 128, True, qk_norm=True),
    "Qwen/Qwen3-1.7B": ModelShape(151936, 2048, 6144, 28, 16, 8, 128, True, qk_norm=True),
    "Qwen/Qwen3-4B": ModelShape(151936, 2560, 9728, 36, 32, 8, 128, True, qk_norm=True),
    "Qwen/Qwen3-8B": ModelShape(151936, 4096, 12288, 36, 32, 8, 128, False, qk_norm=True),
}


def find_shape(name: str, model_config: Path | None = None) -> ModelShape:
    """The shape of the model that a recipe names, or of the `config.json` (or its folder) in `model_config`.

    `name` is one of {data}`~reference_impl.models.shapes.SHAPES`, with or without `-Instruct` or `-Base`, or a model
    folder. Raises {class}`~reference_impl.config.errors.ConfigError` for any other name and for a file that is not such
    a model's.
    """
    if model_config is not None:
        return read_config(model_config / "config.json" if model_config.is_dir() else model_config)
    if shape := SHAPES.get(name.removesuffix("-Instruct").removesuffix("-Base")):
        return shape
    folder = Path(name).expanduser()
    if folder.is_dir():
        return read_config(folder / "config.json")
    near = nearest(name, SHAPES)
    hint = f"; did you mean {near}?" if near else ""
    raise ConfigError(f"policy.model_name: the shape of {name!r} is not known; give --model-config config.json{hint}")


def read_config(path: Path) -> ModelShape:
    """The shape in a Hugging Face `config.json`; raises {class}`~reference_impl.config.errors.ConfigError`."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    if not isinstance(config, dict) or config.get("model_type") not in MODEL_TYPES:
        kind = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise ConfigError(f"{path}: model_type: {kind!r}; expected one of {', '.join(MODEL_TYPES)}")
    for bias in ("attention_bias", "mlp_bias"):
        if config.get(bias):
            raise ConfigError(f"{path}: {bias}: true; only models without it are planned")
    heads = _whole(path, config, "num_attention_heads")
    return ModelShape(
        vocab_size=_whole(path, config, "vocab_size"),
        hidden_size=_whole(path, config, "hidden_size"),
        intermediate_size=_whole(path, config, "intermediate_size"),
        num_hidden_layers=_whole(path, config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_whole(path, config, "num_key_value_heads", heads),
        head_dim=_whole(path, config, "head_dim", _whole(path, config, "hidden_size") // heads),
        tie_word_embeddings=config.get("tie_word_embeddings") is True,
        qkv_bias=config["model_type"] == "qwen2",
        qk_norm=config["model_type"] == "qwen3",
    )


def _whole(path: Path, config: Mapping[str, Any], key: str, absent: int | None = None) -> int:
    """A key that is a whole number above 0; `absent` stands in where it is missing or null."""
    value = config.get(key)
    if value is None and absent is not None:
        value = absent
    if type(value) is not int or value < 1:
        said = "is missing" if key not in config else f"{value!r}"
        raise ConfigError(f"{path}: {key}: {said}; expected a whole number above 0")
    return value
