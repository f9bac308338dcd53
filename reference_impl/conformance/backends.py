"""The class that is held to the contract: a registered backend's name, or `package.module:Class`."""

import importlib
from typing import Any

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.generation.registry import BACKENDS


def find_backend(name: str) -> Any:
    """Import a backend's class. Raises `ConfigError`, in one line, for a name that is not there or cannot be imported."""
    path, _, attribute = BACKENDS.get(name, name).partition(":")
    if not attribute:
        close = nearest(name, BACKENDS)
        hint = f"did you mean {close}?" if close else f"known backends: {', '.join(BACKENDS)}, or package.module:Class"
        raise ConfigError(f"no backend {name!r}; {hint}")
    try:
        module = importlib.import_module(path)
    except Exception as error:  # whatever a module of somebody's does when it is imported
        if name in BACKENDS:
            raise
        text = " ".join(str(error).split())
        raise ConfigError(f"backend {name!r}: cannot import {path}: {type(error).__name__}: {text}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        close = nearest(attribute, classes)
        hint = f"; did you mean {close}?" if close else ""
        raise ConfigError(f"backend {name!r}: no class {attribute} in {path}{hint}")
    return found
