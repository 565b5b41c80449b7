"""A file mapped read-only, with every access checked against its size."""

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile, MissingFile
from dielet.files import require_file


class FileMap:
    """The bytes of one file.  Kept open for as long as any view of it lives.

    stamp: changes when the file does, whoever sets its modification time back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_file(path, "the weights as a file")
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if not self.size:
                    raise DamagedFile(f"{path}: the file is empty")
                self.stamp = _stamp(os.fstat(file.fileno()))
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise MissingFile(f"cannot read {path}: {error.strerror or error}") from error
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def view(self, offset: int, length: int) -> NDArray[np.uint8]:
        """`length` bytes from `offset`, not copied."""
        assert offset >= 0 and length >= 0 and offset + length <= self.size
        return self.data[offset : offset + length]

    def drop(self, offset: int, length: int) -> None:
        """Take whole pages of this range out of resident memory; they are read again if needed.

        A checkpoint is read once and may be larger than memory: without this, all of it counts
        as resident until the file is closed.
        """
        page = mmap.PAGESIZE
        start, end = -(-offset // page) * page, (offset + length) // page * page
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)


def _stamp(stat: os.stat_result) -> bytes:
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}".encode()


def read_small(path: Path, limit: int = 256 << 20) -> bytes:
    """The whole of a file that has no business being large."""
    require_file(path, "a file on a disk")
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise MissingFile(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > limit:
        raise DamagedFile(f"{path}: larger than the {limit >> 20} MB that such a file may have")
    return data
