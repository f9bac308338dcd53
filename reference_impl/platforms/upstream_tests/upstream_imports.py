"""What upstream's test files import before they know whether they will run."""

import builtins
import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from reference_impl.platforms.upstream_tests.cuda_names import is_test

FP8 = SimpleNamespace(check_fp8_support=lambda: (False, "a CPU has no FP8 kernels"))
# The whole suite wants files from the network for tests that are not of inference.
DOWNLOAD = "tests.test_utils.python_scripts.download_unit_tests_dataset"
NO_DOWNLOAD = ModuleType(DOWNLOAD)
NO_DOWNLOAD.__dict__["download_and_extract_asset"] = lambda assets_dir: None


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Transformer Engine's question about FP8 gets its answer, for test files alone, and nothing is downloaded."""
    original = builtins.__import__

    def import_for_tests(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name == "transformer_engine.pytorch.fp8" and is_test(globals or {}):
            return FP8
        return original(name, globals, locals, fromlist, level)

    sys.modules[DOWNLOAD] = NO_DOWNLOAD
    try:
        with mock.patch.object(builtins, "__import__", import_for_tests):
            yield
    finally:
        del sys.modules[DOWNLOAD]
