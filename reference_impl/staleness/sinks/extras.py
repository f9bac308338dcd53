"""One clear line when a sink's tool is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import a sink's tool in here: a module that is missing is reported with the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the {name} sink needs {error.name}, which is not installed: "
            f"pip install 'megatron-generation-reference[{name}]'",
            name=error.name,
        ) from error
