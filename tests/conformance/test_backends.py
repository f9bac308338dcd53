"""Every registered backend passes every check about what it claims."""

import tempfile
from pathlib import Path

import pytest

from reference_impl.conformance.backends import find_backend
from reference_impl.conformance.lab import Models
from reference_impl.conformance.suite import all_checks, not_claimed, run_check
from reference_impl.generation.registry import BACKENDS


def cases():
    """A case for each backend and check that it has to pass."""
    for name in BACKENDS:
        backend = find_backend(name)
        for check in all_checks():
            if not set(check.needs) & set(not_claimed(backend)):
                yield pytest.param(backend, check, id=f"{name}-{check.name}")


@pytest.fixture(scope="module")
def models():
    """Model folders for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Models(Path(folder))


@pytest.mark.parametrize(("backend", "check"), list(cases()))
def test_is_as_the_contract_says(backend, check, models):
    """Nothing more to say than what the check does."""
    result = run_check(check, backend, models)
    assert result.outcome == "passed", f"{check.protects} {result.why}"


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_not_claimed_has_a_reason(name):
    """One line each, and most is claimed."""
    reasons = not_claimed(find_backend(name))
    assert all(reason and "\n" not in reason for reason in reasons.values())
    assert sum(not set(check.needs) & set(reasons) for check in all_checks()) >= 80
