"""megatron-core comes without PyTorch's compiler on a CPU, where nothing would have been compiled."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA, megatron-core is imported as it is")

IMPORTED = """
import sys
import torch
compile = torch.compile
import reference_impl.generation.megatron.backend, reference_impl.models.gpt
from megatron.core import jit
print(*[name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
print(torch.compile is compile, jit.jit_fuser(print) is print, jit.jit_fuser(dynamic=True)(print) is print)
"""

TRAINED = """
import megatron.core
from megatron.core import jit
from reference_impl.cli.main import app
app(["train", "examples/recipes/grpo-tiny-megatron-sync.yaml", "--smoke", "--run-folder", RUN], standalone_mode=False)
from torch._dynamo.utils import counters
import torch
print(jit.jit_fuser is torch.compile, dict(counters))
"""


def output_of(program: str) -> list[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_the_compiler_stays_out():
    assert output_of(IMPORTED) == ["", "True True True"]


def test_as_upstream_imports_it_nothing_is_compiled_either(tmp_path):
    """Neither in generating nor in training: what is left out is only the import."""
    assert output_of(TRAINED.replace("RUN", repr(str(tmp_path))))[-1] == "True {}"
