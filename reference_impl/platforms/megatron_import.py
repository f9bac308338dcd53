"""Import megatron-core without PyTorch's compiler where nothing would use it.

megatron-core decorates some fused functions with `torch.compile` when it is imported. Nothing is compiled until one of them is
called, but the decorator alone imports the compiler, which takes seconds of every process. On a CPU none of them is called.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from reference_impl.platforms.seams import Seam, install


def _as_written(function: Any = None, **_: Any) -> Callable[..., Any]:
    """Stand in for `torch.compile`, with or without arguments."""
    return (lambda each: each) if function is None else function


COMPILER = Seam(
    "compiler", "torch:compile", "megatron.core.jit: jit_fuser = torch.compile", lambda original: _as_written
)


def import_megatron() -> None:
    """Import megatron-core, unless it is imported already.

    Without a CUDA device its `jit_fuser` then leaves functions as they are. `torch.compile` itself is replaced for the length of
    this import alone.
    """
    if "megatron.core" in sys.modules:
        return
    import torch

    undo = install([] if torch.cuda.is_available() else [COMPILER])
    try:
        importlib.import_module("megatron.core")
    finally:
        undo()
