"""What checks say when a backend is wrong: what was found, what was expected, and of what."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

TOLERANCE = 5e-4
"""Between log-probabilities that two ways of computing must agree on, in float32."""


class ContractError(AssertionError):
    """A backend does not do what the check says."""


def hold(condition: Any, message: str) -> None:
    """Fail with `message` unless the condition holds."""
    if not condition:
        raise ContractError(message)


def equal(found: Any, expected: Any, of: str) -> None:
    """Fail unless both are equal."""
    hold(found == expected, f"{of}: {found!r}, expected {expected!r}")


def close(found: Sequence[float], expected: Sequence[float], of: str, tolerance: float = TOLERANCE) -> None:
    """Fail unless all numbers of both are finite and within `tolerance` of each other."""
    one, other = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    fits = one.shape == other.shape and bool((np.abs(one - other) <= tolerance).all())
    hold(fits, f"{of}: {np.round(one, 5).tolist()}, expected {np.round(other, 5).tolist()} within {tolerance:g}")


def raises(kind: type[Exception], action: Callable[[], Any], of: str, *words: str) -> str:
    """Fail unless the action raises this kind of error, in one line with these words; the line."""
    try:
        action()
    except kind as error:
        text = str(error)
    except Exception as error:
        raise ContractError(f"{of}: {type(error).__name__}, expected {kind.__name__}: {error}") from error
    else:
        raise ContractError(f"{of}: no error, expected {kind.__name__}")
    says(text, of, *words)
    return text


def says(text: str | None, of: str, *words: str) -> None:
    """Fail unless the text is one line that has all the words in it."""
    hold(text, f"{of}: no error")
    lines = (text or "").splitlines()
    hold(len(lines) == 1, f"{of}: an error of {len(lines)} lines, expected one: {text!r}")
    for word in words:
        hold(word in lines[0], f"{of}: the error does not say {word!r}: {text!r}")
