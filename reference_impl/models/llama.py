"""The Llama shape and the two spellings of its weights: Hugging Face's and Megatron Core's.

Hugging Face keeps Q, K and V (and gate and up) apart; Megatron's local spec fuses them:

* `linear_qkv` stacks, for each query group, that group's Q heads, then its K head, then its V head;
* `linear_fc1` stacks gate over up.

The mapping only moves rows about, so it loses nothing: there and back is bit for bit the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impl.models.shapes import ModelShape


class ModelError(ValueError):
    """A model that cannot be found, read or built; one line that names it and says what would do."""


@dataclass(frozen=True, kw_only=True)
class LlamaShape(ModelShape):
    """What building a Llama-like decoder takes beyond its sizes, named as in a Hugging Face `config.json`."""

    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any], source: str = "config.json") -> "LlamaShape":
        """Read the shape from a parsed `config.json`.

        Raises {py:exc}`ModelError` for what the reference does not build: another architecture, biases, scaled RoPE.
        """
        if config.get("model_type") != "llama":
            raise ModelError(f"{source}: model_type {config.get('model_type')!r} is not supported; expected 'llama'")
        for bias in ("attention_bias", "mlp_bias"):
            if config.get(bias):
                raise ModelError(f"{source}: {bias} is true; only models without biases are supported")
        # transformers 5 keeps RoPE's settings together; older files spell rope_theta and rope_scaling apart.
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
        scaling = config.get("rope_scaling") or rope
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            raise ModelError(f"{source}: rope_type {kind!r} is not supported; expected 'default'")
        try:
            heads = config["num_attention_heads"]
            return cls(
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_hidden_layers=config["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=float(rope["rope_theta"]),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                max_position_embeddings=config["max_position_embeddings"],
            )
        except KeyError as missing:
            raise ModelError(f"{source}: key {missing} is missing") from None

    def to_hf_config(self) -> dict[str, Any]:
        """The `config.json` with which transformers builds the same model."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
        }

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Hugging Face name -> shape of every weight of this model."""
        hidden, ffn, dim = self.hidden_size, self.intermediate_size, self.head_dim
        q, kv = self.num_attention_heads * dim, self.num_key_value_heads * dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for i in range(self.num_hidden_layers):
            layer = f"model.layers.{i}."
            shapes |= {
                layer + "self_attn.q_proj.weight": (q, hidden),
                layer + "self_attn.k_proj.weight": (kv, hidden),
                layer + "self_attn.v_proj.weight": (kv, hidden),
                layer + "self_attn.o_proj.weight": (hidden, q),
                layer + "mlp.gate_proj.weight": (ffn, hidden),
                layer + "mlp.up_proj.weight": (ffn, hidden),
                layer + "mlp.down_proj.weight": (hidden, ffn),
                layer + "input_layernorm.weight": (hidden,),
                layer + "post_attention_layernorm.weight": (hidden,),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def check_weights(weights: Mapping[str, Tensor], shape: LlamaShape, source: str) -> None:
    """Raise {py:exc}`ModelError` that names the first weight that is missing, unknown or of another shape."""
    expected = shape.weight_shapes()
    for name, size in expected.items():
        if name not in weights:
            raise ModelError(f"{source}: weight {name} is missing")
        if tuple(weights[name].shape) != size:
            raise ModelError(f"{source}: weight {name} has shape {tuple(weights[name].shape)}, expected {size}")
    # A tied model's file may still carry lm_head: it is the embedding again.
    if extra := set(weights) - set(expected) - {"lm_head.weight"}:
        raise ModelError(f"{source}: weight {min(extra)} does not belong to this model")


def megatron_from_hf(weights: Mapping[str, Tensor], shape: LlamaShape) -> Iterator[tuple[str, Tensor]]:
    """Yield (Megatron name, tensor) for a Hugging Face Llama state dict, one tensor at a time, in a `GPTModel`'s order."""
    groups, dim = shape.num_key_value_heads, shape.head_dim
    per_group = shape.num_attention_heads // groups
    yield "embedding.word_embeddings.weight", weights["model.embed_tokens.weight"]
    for i in range(shape.num_hidden_layers):
        hf, mc = f"model.layers.{i}.", f"decoder.layers.{i}."
        yield mc + "input_layernorm.weight", weights[hf + "input_layernorm.weight"]
        yield mc + "self_attention.linear_proj.weight", weights[hf + "self_attn.o_proj.weight"]
        q = weights[hf + "self_attn.q_proj.weight"].view(groups, per_group * dim, -1)
        k = weights[hf + "self_attn.k_proj.weight"].view(groups, dim, -1)
        v = weights[hf + "self_attn.v_proj.weight"].view(groups, dim, -1)
        yield mc + "self_attention.linear_qkv.weight", torch.cat([q, k, v], dim=1).flatten(0, 1)
        yield mc + "pre_mlp_layernorm.weight", weights[hf + "post_attention_layernorm.weight"]
        gate, up = weights[hf + "mlp.gate_proj.weight"], weights[hf + "mlp.up_proj.weight"]
        yield mc + "mlp.linear_fc1.weight", torch.cat([gate, up])
        yield mc + "mlp.linear_fc2.weight", weights[hf + "mlp.down_proj.weight"]
    yield "decoder.final_layernorm.weight", weights["model.norm.weight"]
    if not shape.tie_word_embeddings:
        yield "output_layer.weight", weights["lm_head.weight"]


def hf_from_megatron(weights: Mapping[str, Tensor], shape: LlamaShape) -> dict[str, Tensor]:
    """The inverse of {py:func}`megatron_from_hf`: Megatron names in, Hugging Face names out."""
    groups, dim = shape.num_key_value_heads, shape.head_dim
    per_group = shape.num_attention_heads // groups
    out = {"model.embed_tokens.weight": weights["embedding.word_embeddings.weight"]}
    for i in range(shape.num_hidden_layers):
        hf, mc = f"model.layers.{i}.", f"decoder.layers.{i}."
        qkv = weights[mc + "self_attention.linear_qkv.weight"].view(groups, (per_group + 2) * dim, -1)
        q, k, v = qkv.split([per_group * dim, dim, dim], dim=1)
        gate, up = weights[mc + "mlp.linear_fc1.weight"].chunk(2)
        out |= {
            hf + "self_attn.q_proj.weight": q.flatten(0, 1),
            hf + "self_attn.k_proj.weight": k.flatten(0, 1),
            hf + "self_attn.v_proj.weight": v.flatten(0, 1),
            hf + "self_attn.o_proj.weight": weights[mc + "self_attention.linear_proj.weight"],
            hf + "mlp.gate_proj.weight": gate,
            hf + "mlp.up_proj.weight": up,
            hf + "mlp.down_proj.weight": weights[mc + "mlp.linear_fc2.weight"],
            hf + "input_layernorm.weight": weights[mc + "input_layernorm.weight"],
            hf + "post_attention_layernorm.weight": weights[mc + "pre_mlp_layernorm.weight"],
        }
    out["model.norm.weight"] = weights["decoder.final_layernorm.weight"]
    if not shape.tie_word_embeddings:
        out["lm_head.weight"] = weights["output_layer.weight"]
    return out
