"""Model folders: `config.json` and safetensors as Hugging Face lays them out, read and written.

A GGUF file becomes such a folder once: transformers dequantises it (many seconds for 135M parameters), and the result is
kept in the user's cache folder, keyed by the file's content.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_impl.models.llama import LlamaShape, ModelError, check_weights


def read_shape(folder: Path) -> LlamaShape:
    """The shape that a model folder's `config.json` describes."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model folder holds config.json and *.safetensors") from None
    except json.JSONDecodeError as error:
        raise ModelError(f"{path}:{error.lineno}:{error.colno}: {error.msg}") from None
    return LlamaShape.from_hf_config(config, str(path))


def read_weights(folder: Path, shape: LlamaShape) -> dict[str, Tensor]:
    """All weights of a model folder under Hugging Face names, checked against `shape`."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: no *.safetensors file in it")
    weights: dict[str, Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except Exception as error:  # safetensors raises its own, untyped errors
            raise ModelError(f"{file}: not a readable safetensors file ({error})") from None
    check_weights(weights, shape, str(folder))
    return weights


def write_folder(folder: Path, weights: Mapping[str, Tensor], shape: LlamaShape) -> Path:
    """Write a folder that transformers (and {py:func}`read_weights`) opens: `config.json` and one safetensors file."""
    check_weights(weights, shape, str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    dtype = next(iter(weights.values())).dtype
    config = shape.to_hf_config() | {"dtype": str(dtype).removeprefix("torch.")}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    contiguous = {name: weights[name].detach().cpu().contiguous() for name in shape.weight_shapes()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def folder_of_gguf(file: Path) -> Path:
    """The folder with the float32 weights, the configuration and the tokenizer of a GGUF file, made on first use."""
    if not file.is_file():
        raise ModelError(f"{file}: no such file")
    digest = hashlib.file_digest(file.open("rb"), "sha256").hexdigest()[:16]
    folder = cache_folder() / f"{file.stem}-{digest}"
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as half_made:
            _dequantise(file, Path(half_made))
            # A rename is atomic: two processes may both convert, neither sees half a folder.
            try:
                os.rename(half_made, folder)
            except OSError:
                if not (folder / "config.json").exists():
                    raise
            else:
                Path(half_made).mkdir()  # TemporaryDirectory removes what it made
    return folder


def cache_folder() -> Path:
    """The folder `megatron-generation-reference` in `$XDG_CACHE_HOME`, or in `~/.cache` where that is not set."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "megatron-generation-reference"


def _dequantise(file: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except Exception as error:  # transformers and gguf raise many kinds, all of them about the file
        raise ModelError(f"{file}: transformers cannot read it as GGUF ({error})") from None
    shape = LlamaShape.from_hf_config(model.config.to_dict(), str(file))
    tokenizer.save_pretrained(folder)
    # config.json last: it marks the folder as whole.
    write_folder(folder, model.state_dict(), shape)
