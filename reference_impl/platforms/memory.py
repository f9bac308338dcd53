"""Memory that was freed, given back to the system."""

import ctypes


def give_back() -> None:
    """Have glibc return what was freed between two things that are still held; elsewhere nothing happens.

    Loading a model frees tensors of many sizes, and without this a fifth as much again would stay with the process.
    """
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return
