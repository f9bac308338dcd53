"""The whole package without PyTorch, so that any framework can depend on it and its commands start at once."""

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import reference_impl.staleness
names = [module.name for module in pkgutil.walk_packages(reference_impl.staleness.__path__, "reference_impl.staleness.")]
assert len(names) > 30, names
for name in names:
    importlib.import_module(name)
assert not {"torch", "megatron", "tensorboard", "wandb", "mlflow", "plotly", "rich"} & sys.modules.keys()
"""


def test_no_module_imports_torch_or_a_tool_that_it_may_not_need():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
