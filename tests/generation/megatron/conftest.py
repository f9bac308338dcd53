"""Backends on the real engine: as many as a test wants, or one with a coordinator that several tests share."""

import pytest
from support.batches import recipe

from reference_impl.generation.megatron.backend import MegatronGeneration


@pytest.fixture
def make():
    backends = []

    def build(**settings) -> MegatronGeneration:
        parts = {name: settings.pop(name) for name in ("model", "shape", "tokenizer") if name in settings}
        backend = MegatronGeneration(recipe(**settings), **parts)
        backends.append(backend)
        return backend

    yield build
    for backend in backends:
        backend.shutdown()


@pytest.fixture(scope="module")
def coordinated():
    """One coordinator for the tests that do not end it: its process takes seconds to start."""
    settings = {"length": 96, "max_new_tokens": 50, "stop_token_ids": [], "mcore": {"max_requests": 4}}
    with MegatronGeneration(recipe(mode="coordinator", **settings)) as backend:
        yield backend


@pytest.fixture(params=["direct", "coordinator"])
def either(request, make):
    """A running backend in either mode."""
    if request.param == "coordinator":
        return request.getfixturevalue("coordinated")
    backend = make(length=96, max_new_tokens=50, stop_token_ids=[], mcore={"max_requests": 4})
    backend.prepare_for_generation()
    return backend
