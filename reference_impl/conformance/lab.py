"""What a check works with: backends over models that are known, their weights under the backend's names, and an oracle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from reference_impl.config.loader import load_recipe
from reference_impl.config.schema import MCORE_KEY
from reference_impl.conformance import table_model
from reference_impl.conformance.teacher import Teacher
from reference_impl.generation.interfaces import GenerationInterface
from reference_impl.models import tiny
from reference_impl.models.checkpoints import perturbed
from reference_impl.models.folder import write_folder
from reference_impl.models.llama import LlamaShape, megatron_from_hf
from reference_impl.planning.cache import Setup, block_bytes

SMALL = {
    "buffer_size_gb": 0.001,
    "block_size_tokens": 4,
    "max_requests": 128,
    "max_tokens": 256,
    "enable_chunked_prefill": True,
}


class Models:
    """Model folders for one run of the suite, each written when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tiny = tiny.random_weights()
        self._teachers: dict[int, Teacher] = {}

    def tiny(self, epoch: int = 0) -> dict[str, Tensor]:
        """Weights of `tiny` under Hugging Face names, of `epoch` some way off those of epoch 0."""
        return perturbed(self._tiny, epoch, strength=0.3)

    def teacher(self, epoch: int = 0) -> Teacher:
        """What transformers says of that checkpoint."""
        if epoch not in self._teachers:
            self._teachers[epoch] = Teacher(self.tiny(epoch), tiny.SHAPE)
        return self._teachers[epoch]

    def folder(self, table: Tensor | None) -> Path:
        """The model folder for a table, or that of `tiny`."""
        shape = tiny.SHAPE if table is None else table_model.SHAPE
        name = "tiny" if table is None else hashlib.sha256(table.contiguous().numpy().tobytes()).hexdigest()[:16]
        folder = self._folder / name
        if not folder.is_dir():
            write_folder(folder, self._tiny if table is None else table_model.weights_for(table), shape)
        return folder


class Lab:
    """Backends of the class that is held to the contract, as many as one check wants, shut down at its end."""

    def __init__(self, backend: Any, models: Models) -> None:
        self._class = backend
        self._models = models
        self._backends: list[GenerationInterface] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for backend in self._backends:
            backend.shutdown()

    def backend(
        self,
        table: Tensor | None = None,
        *,
        awake: bool = True,
        epoch: int = 0,
        tokenizer: Any = None,
        length: int = 64,
        blocks: int | None = None,
        mcore: Mapping[str, Any] | None = None,
        **generation: Any,
    ) -> GenerationInterface:
        """A backend over the table model (with `table`), else over `tiny`, made from a recipe as a user's is.

        `generation` and `mcore` are keys of the recipe, over settings for a small engine without stops; `blocks` makes the
        buffer just as large as so many KV blocks.
        """
        settings = {f"{MCORE_KEY}.{key}": value for key, value in (SMALL | dict(mcore or {})).items()}
        if blocks is not None:
            settings[f"{MCORE_KEY}.buffer_size_gb"] = self._buffer(table, blocks, settings)
        settings |= {f"policy.generation.{key}": value for key, value in ({"stop_token_ids": []} | generation).items()}
        settings |= {
            "policy.model_name": str(self._models.folder(table)),
            "policy.max_total_sequence_length": length,
            "policy.precision": "float32",
        }
        recipe = load_recipe(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
        words = tokenizer or (tiny.ByteTokenizer() if table is None else table_model.Digits())
        backend: GenerationInterface = self._class(recipe, tokenizer=words)
        self._backends.append(backend)
        if epoch:
            backend.update_weights(None, epoch=epoch)
        if awake:
            backend.prepare_for_generation()
        return backend

    @staticmethod
    def shape(table: Tensor | None = None) -> LlamaShape:
        """The shape of the table model, or of `tiny`."""
        return tiny.SHAPE if table is None else table_model.SHAPE

    def weights(self, table: Tensor | None = None, *, epoch: int = 0) -> dict[str, Tensor]:
        """Weights under Hugging Face names: for a table, or a checkpoint of `tiny`."""
        return self._models.tiny(epoch) if table is None else table_model.weights_for(table)

    def named(self, backend: GenerationInterface, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same weights under the names of the backend's own parameters, Hugging Face's or Megatron's."""
        names = [name for name, _ in backend.model.named_parameters()]
        if set(names) <= set(weights):
            return {name: weights[name] for name in names}
        shape = table_model.SHAPE if "lm_head.weight" in weights else tiny.SHAPE
        return dict(megatron_from_hf(weights, shape))

    def update(self, backend: GenerationInterface, weights: Mapping[str, Tensor], epoch: int) -> None:
        """Let the backend go on with these weights (Hugging Face names)."""
        backend.update_weights(self.named(backend, weights), epoch=epoch)

    def teacher(self, *, epoch: int = 0) -> Teacher:
        """What transformers says of a checkpoint of `tiny`."""
        return self._models.teacher(epoch)

    def _buffer(self, table: Tensor | None, blocks: int, settings: Mapping[str, Any]) -> float:
        size = f"{MCORE_KEY}.block_size_tokens"
        config = load_recipe(None, [f"{size}={settings[size]}"]).policy.generation.mcore_generation_config
        # Half a block more, so that no rounding takes one away.
        return (blocks + 0.5) * block_bytes(Setup(config, self.shape(table), "float32")) / 2**30
