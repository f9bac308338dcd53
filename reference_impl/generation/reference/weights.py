"""The weights that the forward pass reads, under Megatron's names and in its fused layouts.

On a CPU in float32 each matrix is packed for oneDNN, once, and again when it changes. Elsewhere the tensors are used where
they lie: a `GPTModel` that training shares is read by reference.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from reference_impl.generation.updates import check_finite, check_shapes
from reference_impl.models.llama import LlamaShape
from reference_impl.platforms.packed import Packed, can_pack, pack, repack, unpack

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
LAYER = (
    "input_layernorm",
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "pre_mlp_layernorm",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)
Layer = tuple[Tensor, Tensor | Packed, Tensor | Packed, Tensor, Tensor | Packed, Tensor | Packed]
"""A layer's weights in the order in which the forward pass uses them: norm, QKV, projection, norm, gate and up, down."""


class Weights:
    """All weights of one model, plain or packed, and their names and shapes.

    Made from `tensors`, (Megatron name, tensor) one at a time, of which it keeps its own copies; or from a shared
    `model`, whose parameters stay the ones that training changes: then only packed copies are added. The names of
    {py:meth}`named_parameters` are those of a `GPTModel`, so what takes such a model's parameters takes these.
    """

    def __init__(
        self,
        shape: LlamaShape,
        tensors: Iterable[tuple[str, Tensor]],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        model: Any = None,
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self.eps = torch.tensor(shape.rms_norm_eps)  # a tensor once, for a number would be made into one at each use
        self._parameters = dict(model.named_parameters()) if model is not None else None
        self._read: dict[str, Tensor | Packed] = {}  # what the forward pass reads
        self.shapes: dict[str, torch.Size] = {}
        for name, tensor in tensors if self._parameters is None else self._parameters.items():
            self.shapes[name] = tensor.shape
            self._set(name, tensor.detach())
        self._arrange()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(name, plain tensor) of every weight; a packed one is unpacked into a copy."""
        if self._parameters is not None:
            yield from self._parameters.items()
            return
        for name in self.shapes:
            tensor = self._read[name]
            yield name, tensor if isinstance(tensor, Tensor) else unpack(tensor)

    def parameters(self) -> Iterator[Tensor]:
        """The tensors of `named_parameters`."""
        return (tensor for _, tensor in self.named_parameters())

    def update(self, state_dict: Mapping[str, Tensor] | None) -> None:
        """Take other values; `None` says that the shared model's parameters have changed in place.

        A state dict that is incomplete, misshapen or not finite is refused whole (`ValueError`), before any value is
        used. Values are taken tensor by tensor, so that no second copy of all weights exists at any moment.
        """
        if state_dict is not None:
            check_shapes(self.shapes, {name: tensor.shape for name, tensor in state_dict.items()})
            check_finite(state_dict)
        for name in self.shapes:
            if self._parameters is None:
                if state_dict is not None:
                    self._set(name, state_dict[name].detach())
                continue
            parameter = self._parameters[name].detach()
            if state_dict is not None:
                parameter.copy_(state_dict[name])
            self._set(name, parameter)
        self._arrange()

    def _set(self, name: str, tensor: Tensor) -> None:
        """Read this tensor's values under `name` from now on: packed, by reference, or as a copy of our own."""
        shared = self._parameters is not None
        value = tensor if shared else tensor.to(self.device, self.dtype)
        packed = can_pack(value) and value.ndim == 2
        if packed and name != EMBEDDING:
            self._pack(name, value)
            return
        if shared:
            self._read[name] = value
        elif isinstance(held := self._read.get(name), Tensor):
            held.copy_(value)
        else:
            self._read[name] = value.clone() if value is tensor else value
        if name == EMBEDDING and self.shape.tie_word_embeddings:
            if packed:
                self._pack(OUTPUT, value)
            else:
                self._read[OUTPUT] = self._read[name]

    def _pack(self, name: str, tensor: Tensor) -> None:
        if isinstance(held := self._read.get(name), list):
            repack(held, tensor)
        else:
            self._read[name] = pack(tensor)

    def _arrange(self) -> None:
        embedding, norm = self._read[EMBEDDING], self._read["decoder.final_layernorm.weight"]
        assert isinstance(embedding, Tensor), "rows of it are looked up"
        assert isinstance(norm, Tensor), "a vector is not packed"
        self.embedding, self.final_norm, self.output = embedding, norm, self._read[OUTPUT]
        self.layers: list[Layer] = [
            tuple(self._read[f"decoder.layers.{i}.{part}.weight"] for part in LAYER)  # type: ignore[misc]
            for i in range(self.shape.num_hidden_layers)
        ]
