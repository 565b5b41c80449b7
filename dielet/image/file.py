"""The .img container: a header, a JSON table, program blobs, then weights from a page boundary.

    bytes 0-7    magic          8-11  version (u32)      12-19  length of the JSON table (u64)
    20-...       JSON: where each program and each share of weights is, offsets checked when read

Sizes are planned beforehand, so a file is written front to back and hashed on the way.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile, MissingFile
from dielet.files import UNDECODABLE
from dielet.program import Program, WeightPlan
from dielet.program.memory import Share, aligned

MAGIC = b"DIELETIM"
VERSION = 1
PAGE = 4096
_PREFIX = struct.Struct("<8sIQ")
_LONGEST_TABLE = 64 << 20


class ProgramEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    offset: int
    nbytes: int


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON table.  Program offsets count from the table's end; shares from the data's start."""

    space: str
    data_nbytes: int
    programs: tuple[ProgramEntry, ...]
    shares: tuple[Share, ...]


class HashingWriter:
    """A binary file that is written front to back and knows its own sha256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.position = 0

    def write(self, data: bytes | NDArray[np.uint8]) -> None:
        view = memoryview(data)  # type: ignore[arg-type]
        self._file.write(view)
        self._hash.update(view)
        self.position += view.nbytes

    def pad_to(self, position: int) -> None:
        assert position >= self.position
        self.write(bytes(position - self.position))

    def sha256(self) -> str:
        return self._hash.hexdigest()


def write_image(
    out: HashingWriter,
    plan: WeightPlan,
    programs: tuple[Program, ...],
    pieces: Iterator[tuple[Share, Iterator[NDArray[np.uint8]]]],
) -> None:
    """Write header, programs, and then the shares in the plan's order as `pieces` brings them."""
    blobs = [msgspec.msgpack.encode(program) for program in programs]
    entries, offset = [], 0
    for program, blob in zip(programs, blobs, strict=True):
        entries.append(ProgramEntry(program.name, offset, len(blob)))
        offset += len(blob)
    table = msgspec.json.encode(Table(plan.space, plan.nbytes, tuple(entries), plan.shares))
    out.write(_PREFIX.pack(MAGIC, VERSION, len(table)))
    out.write(table)
    for blob in blobs:
        out.write(blob)
    start = aligned(out.position, PAGE)
    for share, chunks in pieces:
        out.pad_to(start + share.offset)
        for chunk in chunks:
            out.write(chunk)
        assert out.position == start + share.offset + share.nbytes, share
    out.pad_to(start + plan.nbytes)


@dataclass(frozen=True)
class Image:
    """An open .img: its table, and its weights mapped read-only."""

    path: Path
    table: Table
    data: NDArray[np.uint8]
    _blobs: memoryview

    def program(self, name: str) -> Program:
        for entry in self.table.programs:
            if entry.name == name:
                blob = self._blobs[entry.offset : entry.offset + entry.nbytes]
                try:
                    return msgspec.msgpack.decode(blob, type=Program)
                except UNDECODABLE as error:
                    raise DamagedFile(f"{self.path}: program {name}: {error}") from None
        known = ", ".join(entry.name for entry in self.table.programs)
        raise DamagedFile(f"{self.path} has no program '{name}'; it has {known}")


def open_image(path: Path) -> Image:
    """Map an image, every offset of its table checked.  DamagedFile says what is wrong."""
    view = map_file(path)
    if len(view) < _PREFIX.size:
        raise DamagedFile(f"{path} has {len(view)} bytes, too few for an image; compile again")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise DamagedFile(f"{path} is not a dielet image; compile the model again")
    if version != VERSION:
        raise DamagedFile(
            f"{path} is of version {version}, this dielet reads {VERSION}; compile the model again"
        )
    end = _PREFIX.size + length
    if length > _LONGEST_TABLE or end > len(view):
        raise DamagedFile(f"{path}: a table of {length} bytes cannot be; compile the model again")
    try:
        table = msgspec.json.decode(view[_PREFIX.size : end], type=Table)
    except UNDECODABLE as error:
        raise DamagedFile(f"{path}: {error}; compile the model again") from None
    blobs_end = end + max((p.offset + p.nbytes for p in table.programs), default=0)
    start = aligned(blobs_end, PAGE)
    if start + table.data_nbytes != len(view) or _out_of_bounds(table):
        raise DamagedFile(
            f"{path} has {len(view)} bytes, its table says {start + table.data_nbytes}; "
            "compile the model again"
        )
    data = np.frombuffer(view, np.uint8)[start:]
    return Image(path, table, data, view[end:start])


def _out_of_bounds(table: Table) -> bool:
    spans = [(s.offset, s.nbytes, table.data_nbytes) for s in table.shares]
    return any(o < 0 or n < 0 or o + n > limit for o, n, limit in spans) or any(
        p.offset < 0 or p.nbytes < 0 for p in table.programs
    )


def map_file(path: Path) -> memoryview:
    """The file's bytes, mapped read-only; empty files too."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError:
        raise MissingFile(f"{path} is missing; compile the model again") from None
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from None
