"""Import megatron-core without PyTorch's compiler where nothing would use it.

megatron-core decorates some fused functions with `torch.compile` when it is imported. Nothing is compiled until one of them is
called, but the decorator alone imports the compiler, which takes seconds of every process. On a CPU none of them is called.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch


def import_megatron() -> None:
    """Import megatron-core, unless it is imported already.

    Without a CUDA device its `jit_fuser` then leaves functions as they are. `torch.compile` itself is replaced for the length of
    this import alone.
    """
    if "megatron.core" in sys.modules:
        return
    import torch

    if torch.cuda.is_available():
        importlib.import_module("megatron.core")
    else:
        with patch.object(torch, "compile", _as_written):
            importlib.import_module("megatron.core")


def _as_written(function: Any = None, **_: Any) -> Callable[..., Any]:
    """Stand in for `torch.compile`, with or without arguments."""
    return (lambda each: each) if function is None else function
