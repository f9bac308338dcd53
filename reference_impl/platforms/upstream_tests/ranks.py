"""Tests that ask for more ranks than there are: stopped with a word, and the next one finds its group of one rank again."""

import functools
import inspect
from collections.abc import Callable
from math import prod
from typing import Any

from reference_impl.platforms.upstream_tests.cuda_names import MissingOnCpuError

DIMENSIONS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
EXPERTS = "expert_model_parallel_size"


def refused_beyond(initialize: Callable[..., Any], world_size: int) -> Callable[..., Any]:
    """`initialize` of upstream's tests, refused where the sizes that it is given multiply to more than `world_size`."""
    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        given |= given.get("kwargs", {})
        needed = max(prod(given.get(name) or 1 for name in DIMENSIONS), given.get(EXPERTS) or 1)
        if needed > world_size:
            initialize()  # many a test takes the group down before it asks for another, and counts on getting it
            raise MissingOnCpuError(f"needs {needed} ranks")
        return initialize(*args, **kwargs)

    return checked
