"""Where a run goes on after it was stopped, by whatever: weights, optimizer, random numbers, and what the loop has to know.

A checkpoint is a folder that gets its name when all of it is on the disk. Until then it has another name, and whoever looks
for the latest does not see it; so there is never half of one.
"""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_impl.config.errors import ConfigError

KEPT = 2
"""Newest checkpoints that stay: one to go on from, and the one before it."""

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
RANDOM = "random"
NAME = re.compile(r"step-(\d{8})")


class CheckpointError(ConfigError):
    """A checkpoint could not be written or does not fit; those written before are untouched."""


def save(folder: Path, step: int, model: Any, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` below `folder`, and remove all but the newest {py:data}`KEPT`.

    `state` is anything that JSON can hold. Raises {py:exc}`CheckpointError` in one line where it cannot be written, on a
    full disk above all; then nothing of it is left, and what was there before is.
    """
    final = folder / f"step-{step:08d}"
    part = folder / f".{final.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.part"):  # of a process that was killed
            shutil.rmtree(left)
        part.mkdir()
        save_file({name: tensor.detach().contiguous() for name, tensor in model.named_parameters()}, part / WEIGHTS)
        tensors, settings = _apart(optimizer)
        save_file(tensors | {RANDOM: torch.get_rng_state()}, part / OPTIMIZER)
        (part / STATE).write_text(json.dumps({"state": {"step": step} | state, "optimizer": settings}) + "\n", "utf-8")
        for path in (*part.iterdir(), part):
            _to_disk(path)
        if final.exists():
            _discard(final)
        part.rename(final)
        _to_disk(folder)
    except (
        OSError,
        RuntimeError,
        SafetensorError,
    ) as error:  # torch.save has a RuntimeError for a file it cannot write
        shutil.rmtree(part, ignore_errors=True)
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise CheckpointError(f"{final}: cannot be written: {why}; earlier checkpoints are untouched") from error
    for old in _all(folder)[:-KEPT]:
        _discard(old)
    return final


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step, or `None`."""
    return found[-1] if (found := _all(folder)) else None


def load(path: Path, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint into a model's own parameters, an optimizer and the global random numbers; its `state`, with `step`.

    Raises {py:exc}`CheckpointError` for one of another model, before anything is changed.
    """
    try:
        weights = load_file(path / WEIGHTS)
        tensors = load_file(path / OPTIMIZER)
        known = json.loads((path / STATE).read_text("utf-8"))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from error
    parameters = dict(model.named_parameters())
    for name in parameters.keys() | weights.keys():
        sizes = [list(each[name].shape) if name in each else None for each in (weights, parameters)]
        if sizes[0] != sizes[1]:
            raise CheckpointError(f"{path}: {name} is {sizes[0]} in the checkpoint and {sizes[1]} in the model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    torch.set_rng_state(tensors.pop(RANDOM))
    optimizer.load_state_dict(_together(tensors, known["optimizer"]))
    return dict(known["state"])


def _apart(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's tensors, by parameter and name, and what JSON can hold of it: no pickle, which can run code."""
    known = optimizer.state_dict()
    tensors, others = {}, {}
    for number, values in known["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{name}"] = value.contiguous()
            else:
                others[f"{number}.{name}"] = value
    return tensors, {"others": others, "param_groups": known["param_groups"]}


def _together(tensors: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """The state dict that `_apart` took apart."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (tensors | settings["others"]).items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    return {"state": state, "param_groups": settings["param_groups"]}


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name))


def _discard(path: Path) -> None:
    """Remove a checkpoint; it loses its name first, so that half of it is never taken for one."""
    gone = path.with_name(f".{path.name}.old.part")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
