"""Gives memory that is free back to the system.

The C library keeps freed arrays below 32 MB for later; between the stages of reading a long trace
nothing of that size is needed again, and it would add up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim`, where the C library has it."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return found


def give_back() -> None:
    trim = _trim()
    if trim is not None:
        trim(0)
