"""OpenMP's teams of threads, of which a process should have one that computes.

GNU OpenMP keeps a team for each thread that has computed something in parallel. Once the teams have more threads than
there are cores, it no longer spins at a barrier but sleeps, at each of the hundreds in a decode step.
"""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

SOFT = 1  # OpenMP's omp_pause_soft: what is released comes back when it is needed


def release_team() -> None:
    """End the calling thread's own team, if it has one; its next parallel computation makes another."""
    if pause := _pause():
        pause(SOFT)


@functools.cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the GNU OpenMP that this process has loaded, if it has (Linux)."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    loaded = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libgomp" in line}
    for path in sorted(loaded):
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            return pause
    return None
