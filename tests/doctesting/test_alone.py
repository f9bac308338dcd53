"""The package stands alone: another project needs neither the rest of this one nor what that is built on."""

import subprocess
import sys
import textwrap

IMPORT_ALL = """
    import importlib, pkgutil, sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            ours = name.startswith("reference_impl.") and not name.startswith("reference_impl.doctesting")
            if ours or name.partition(".")[0] in {"megatron", "omegaconf", "pydantic", "ruamel", "torch", "typer"}:
                raise ImportError(f"{name} is not needed")

    sys.meta_path.insert(0, Refuse())
    package = importlib.import_module("reference_impl.doctesting")
    names = [module.name for module in pkgutil.iter_modules(package.__path__, "reference_impl.doctesting.")]
    for name in names:
        importlib.import_module(name)
    print(*names)
"""


def test_every_module_imports_without_the_rest_of_this_project() -> None:
    """Whatever one of them imports is part of Sphinx, MyST, Sybil, pytest, jsonschema or Python."""
    command = [sys.executable, "-c", textwrap.dedent(IMPORT_ALL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "reference_impl.doctesting.pytest_plugin" in done.stdout.split()
