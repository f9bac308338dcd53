"""Backends by name. A backend is imported when it is asked for, not before."""

import importlib
from typing import Any

from reference_impl.config.errors import ConfigError, nearest
from reference_impl.config.schema import Recipe
from reference_impl.generation.interfaces import GenerationInterface

BACKENDS = {
    "megatron": "reference_impl.generation.megatron.backend:MegatronGeneration",
    "reference": "reference_impl.generation.reference.backend:ReferenceGeneration",
    "huggingface": "reference_impl.generation.huggingface:HuggingFaceGeneration",
}


def create_backend(recipe: Recipe, **parts: Any) -> GenerationInterface:
    """Make the backend that `policy.generation.backend` names; `parts` (a model, a tokenizer) are passed on to it.

    Raises {py:exc}`~reference_impl.config.errors.ConfigError` with the nearest name for an unknown backend.
    """
    name = recipe.policy.generation.backend
    if name not in BACKENDS:
        close = nearest(name, BACKENDS)
        hint = f"did you mean {close}?" if close else f"known backends: {', '.join(BACKENDS)}"
        raise ConfigError(f"policy.generation.backend: no backend {name!r}; {hint}")
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)(recipe, **parts)
