"""A trace file on its way to disk: whole packets, optionally compressed, and a name at the end."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet.errors import CapacityError
from dielet.profiler import perfetto
from dielet.profiler.wire import Bytes, text

try:
    from isal import isal_zlib as zlib  # the same format, at four times zlib's speed
except ImportError:  # a machine that there is no wheel for
    import zlib  # type: ignore[no-redef]

RUN = 256 << 10  # bytes of packets that are compressed together; readers expect less than 512 KiB
ENOUGH = RUN // 4  # bytes from which more in a run would hardly make it smaller
FULL = errno.ENOSPC, errno.EDQUOT
LEVEL = 1  # higher ones take longer for a few per cent


class TraceFile:
    """Written under a temporary name beside `path`, which it gets when it is complete.

    As a context manager: leaving it by an exception removes what there is.  make_room: asked to
    when the disk is full; whether it did.
    """

    def __init__(
        self,
        path: Path,
        compress: bool = False,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path, self._make_room = path, make_room
        self.nbytes = 0  # of packets, before compression
        self._compress = compress
        self._run = bytearray()
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._file = self._open()

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, packets: bytes | Bytes, ends: NDArray[np.int64] | None = None) -> None:
        """Add whole packets.  `ends`: where they end, so that a long run can be cut."""
        data = packets if isinstance(packets, bytes) else packets.reshape(-1).data
        self.nbytes += len(data)
        if not self._compress:
            self._put(data)
            return
        begin = 0
        if ends is not None and len(data) > RUN:
            cuts = np.searchsorted(ends, np.arange(RUN, len(data), RUN), side="right") - 1
            for cut in np.unique(ends[cuts[cuts >= 0]]).tolist():
                self._add(data[begin:cut])
                begin = cut
        self._add(data[begin:])

    def close(self) -> None:
        """Complete the file and give it its name."""
        try:
            self._flush()
            self._file.close()
            os.replace(self._temporary, self.path)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise self._named(error, self._file.end) from None
            raise

    def discard(self) -> None:
        """Remove what has been written."""
        with suppress(OSError):  # what a full disk refuses is not wanted any more
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _open(self) -> _Sink:
        try:
            return _Sink(self._temporary)
        except OSError as error:
            raise self._named(error, 0) from None

    def _add(self, data: bytes | memoryview) -> None:
        """Compress packets: a few wait for others, many are a run of their own."""
        if len(self._run) + len(data) > RUN or len(data) > ENOUGH:
            self._flush()
        if len(data) > ENOUGH:
            self._pack(data)
        else:
            self._run += data

    def _flush(self) -> None:
        if self._run:
            self._pack(self._run)
            self._run.clear()

    def _pack(self, packets: bytes | bytearray | memoryview) -> None:
        self._put(perfetto.packet(text(perfetto.COMPRESSED, zlib.compress(packets, LEVEL))))

    def _put(self, data: bytes | memoryview) -> None:
        end = self._file.end
        try:
            self._file.write(data)
        except OSError as error:
            if error.errno not in FULL or not self._make_room():
                raise self._named(error, self._file.end) from None
            self._file.cut(end)  # a part may be there
            self._put(data)

    def _named(self, error: OSError, written: int) -> OSError | CapacityError:
        """A full disk in words; other errors with the name that the user knows."""
        if error.errno in FULL:
            compressed = "" if self._compress else ", or write compressed traces"
            return CapacityError(
                f"the disk is full: {self.path.name} needs more than the {written:,} bytes "
                f"written so far, and {self.path.parent} has no room; free some, or choose another "
                f"output directory{compressed}"
            )
        return OSError(error.errno, error.strerror, str(self.path))


class _Sink:
    """An unbuffered file: what is written in large pieces needs no buffer, and fails at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self.end = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self.end += len(data)

    def cut(self, end: int) -> None:
        """Forget what was written after `end`."""
        self._file.seek(end)
        self._file.truncate()
        self.end = end

    def close(self) -> None:
        self._file.close()
