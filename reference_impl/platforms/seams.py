"""Seams: names of another library that we answer differently, one at a time, and can put back.

A seam says which line upstream makes it necessary, so that a test can tell when it no longer does.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seam:
    """One name that is answered differently.

    `target` is `module:attribute.path`. `upstream` is `module: text`, a line that needs the seam. `make` takes the
    original object and returns its replacement. `speed` marks a seam without which all works, but too slowly.
    """

    name: str
    target: str
    upstream: str
    make: Callable[[Any], Any]
    speed: bool = False

    @property
    def owner(self) -> Any:
        """The object that holds the attribute."""
        module, _, path = self.target.partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split(".")[:-1]:
            found = getattr(found, part)
        return found

    @property
    def attribute(self) -> str:
        """The attribute's own name."""
        return self.target.rpartition(":")[2].rpartition(".")[2]


def install(seams: Iterable[Seam]) -> Callable[[], None]:
    """Put the seams in place, all or none; returns the function that takes them out again, last first."""
    done: list[tuple[Any, str, Any]] = []

    def undo() -> None:
        while done:
            owner, attribute, original = done.pop()
            setattr(owner, attribute, original)

    try:
        for seam in seams:
            owner = seam.owner
            if not hasattr(owner, seam.attribute):
                raise RuntimeError(f"seam {seam.name}: upstream has no {seam.target} any more")
            original = getattr(owner, seam.attribute)
            setattr(owner, seam.attribute, seam.make(original))
            done.append((owner, seam.attribute, original))
    except BaseException:
        undo()
        raise
    return undo
