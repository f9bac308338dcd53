"""How much computing something takes: what a clock shows also holds the turns of other processes."""

import resource
from collections.abc import Callable


def of_children(act: Callable[[], object]) -> float:
    """CPU seconds, user and system, of the processes that `act` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
