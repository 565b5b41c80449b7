"""The host's address spaces: mapped files, and anonymous memory that is free until touched."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.program.types import ALL_SPACES, space_number

Bytes = NDArray[np.uint8]


def anonymous(nbytes: int, huge: bool = False) -> Bytes:
    """Zeroed, page-aligned memory that becomes resident page by page as it is used.

    `huge` asks for large pages, for memory that will all be used soon.  Raises MemoryError.
    """
    try:
        region = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE))
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes cannot be had: {error.strerror}") from None
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8)[:nbytes]


def address(array: NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


class Bases:
    """The table of base addresses that kernels resolve operands with, by `space_number`."""

    def __init__(self) -> None:
        self.table = np.zeros(ALL_SPACES, np.int64)
        self._held: dict[str, NDArray[np.generic]] = {}

    def __setitem__(self, space: str, memory: NDArray[np.generic]) -> None:
        self._held[space] = memory  # keeps the memory alive for as long as the table points to it
        self.table[space_number(space)] = address(memory)

    def __getitem__(self, space: str) -> NDArray[np.generic]:
        return self._held[space]


def drop_code_pages(*libraries: str) -> None:
    """Give back the resident code of loaded libraries that have done most of their work.

    Code pages are clean and private: the system reads them again from the file if they are called.
    Does nothing where /proc or madvise is missing.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError, TypeError):
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in maps.splitlines():
        span, permissions, *rest = line.split(maxsplit=5)
        if permissions == "r-xp" and rest and any(library in rest[-1] for library in libraries):
            start, end = (int(edge, 16) for edge in span.split("-"))
            madvise(start, end - start, mmap.MADV_DONTNEED)
