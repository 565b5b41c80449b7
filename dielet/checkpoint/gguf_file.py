"""A reader of .gguf files that trusts nothing: every count, length and offset is checked.

A file is a header, metadata (named, typed values), a directory of tensors, and their blocks.
"""

import struct
from pathlib import Path
from typing import Any, NamedTuple

from dielet.checkpoint.filemap import FileMap
from dielet.checkpoint.names import shown
from dielet.checkpoint.source import FileTensor
from dielet.errors import DamagedFile, Unsupported
from dielet.formats.ggml import BY_NUMBER, READABLE, BlockType

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_KEY_LIMIT, _NAME_LIMIT = (1 << 16) - 1, 1024
_MOST_DIMS, _LARGEST_DIM = 4, 1 << 40
_SMALLEST_ENTRY = 8 + 4 + 1  # bytes of the shortest metadata entry or directory entry


class Entry(NamedTuple):
    """One tensor of the directory; `shape` is (outputs, inputs): the reverse of the file's."""

    shape: tuple[int, ...]
    block: BlockType
    offset: int  # from the beginning of the file
    nbytes: int


class GgufFile:
    """`metadata` by key and `entries` by tensor name.

    Raises DamagedFile, MissingFile or Unsupported when opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = FileMap(path)
        self._position = 0
        self._where = "the header"
        tensors, pairs = self._read_header()
        self.metadata = self._read_metadata(pairs)
        self.entries = self._read_directory(tensors)
        self._check_overlaps()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def tensor(self, name: str) -> FileTensor:
        """The tensor; raises Unsupported for a block format that cannot be read."""
        entry = self.entries[name]
        if entry.block.name not in READABLE:
            raise Unsupported(
                f"{self.path}: tensor {shown(name)} is {entry.block.name}; "
                f"supported: {', '.join(READABLE)}"
            )
        return FileTensor(name, entry.shape, entry.block, self.file, entry.offset)

    def _bad(self, problem: str) -> DamagedFile:
        return DamagedFile(f"{self.path}: {self._where}: {problem}")

    def _take(self, length: int) -> bytes:
        left = self.file.size - self._position
        if length > left:
            raise self._bad(f"needs {length} bytes, {left} are left; the file is truncated")
        data = self.file.view(self._position, length).tobytes()
        self._position += length
        return data

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _text(self, limit: int) -> str:
        length = self._number("<Q")
        if length > limit:
            raise self._bad(f"a text of {length} bytes is longer than {limit}")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"a text is not UTF-8 ({error.reason})") from error

    def _read_header(self) -> tuple[int, int]:
        if self._take(4) != b"GGUF":
            raise DamagedFile(f"{self.path}: not a GGUF file (it does not begin with GGUF)")
        version = self._number("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in _VERSIONS:
                raise Unsupported(
                    f"{self.path}: a big-endian GGUF file is not supported; use the little-endian "
                    "one, or turn it round: pip install gguf, then gguf-convert-endian FILE little"
                )
            raise Unsupported(
                f"{self.path}: GGUF version {version} is not supported, only 2 and 3; use a file "
                "made by a newer converter"
            )
        tensors, pairs = self._number("<Q"), self._number("<Q")
        most = self.file.size // _SMALLEST_ENTRY
        if tensors > most or pairs > most:
            raise self._bad(
                f"{tensors} tensors and {pairs} metadata entries do not fit in "
                f"{self.file.size} bytes"
            )
        return tensors, pairs

    def _read_metadata(self, pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for i in range(pairs):
            self._where = f"metadata entry {i}"
            key = self._text(_KEY_LIMIT)
            self._where = f"metadata {shown(key)}"
            if key in metadata:
                raise self._bad("occurs twice")
            metadata[key] = self._value(self._number("<I"))
        return metadata

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text(self.file.size)
        if kind == _ARRAY:
            return self._array()
        raise self._bad(f"value type {kind} is unknown")

    def _array(self) -> list[Any]:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            smallest = 8
        elif kind in _SCALARS:
            smallest = struct.calcsize(_SCALARS[kind])
        else:
            raise self._bad(f"an array of type {kind} is not supported")
        left = self.file.size - self._position
        if count * smallest > left:
            raise self._bad(f"an array of {count} does not fit in the {left} bytes left")
        if kind == _STRING:
            return [self._text(self.file.size) for _ in range(count)]
        code = _SCALARS[kind]
        return list(struct.unpack(f"<{count}{code[1]}", self._take(count * smallest)))

    def _read_directory(self, tensors: int) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for i in range(tensors):
            self._where = f"tensor {i}"
            name = self._text(_NAME_LIMIT)
            self._where = f"tensor {shown(name)}"
            if name in found:
                raise self._bad("occurs twice")
            found[name] = self._read_entry()
        alignment = self.metadata.get("general.alignment", 32)
        self._where = "metadata general.alignment"
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise self._bad(f"{alignment!r} is not a positive multiple of 8")
        data = -(-self._position // alignment) * alignment
        for name, entry in found.items():
            self._where = f"tensor {shown(name)}"
            if entry.offset % alignment:
                raise self._bad(f"offset {entry.offset} is not a multiple of {alignment}")
            if data + entry.offset + entry.nbytes > self.file.size:
                raise self._bad(
                    f"its {entry.nbytes} bytes at {data + entry.offset} end beyond the "
                    f"{self.file.size} bytes of the file, which is truncated"
                )
            found[name] = entry._replace(offset=data + entry.offset)
        return found

    def _read_entry(self) -> Entry:
        dims = self._number("<I")
        if not 1 <= dims <= _MOST_DIMS:
            raise self._bad(f"it has {dims} dimensions; 1 to {_MOST_DIMS} are possible")
        shape = tuple(self._number("<Q") for _ in range(dims))
        number, offset = self._number("<I"), self._number("<Q")
        if not all(0 < size <= _LARGEST_DIM for size in shape):
            raise self._bad(f"shape {list(shape)} is not a list of sensible sizes")
        block = BY_NUMBER.get(number)
        if block is None:
            raise Unsupported(
                f"{self.path}: {self._where}: weight type {number} is not supported; "
                f"supported: {', '.join(READABLE)}"
            )
        if shape[0] % block.weights:
            raise self._bad(
                f"rows of {shape[0]} weights cannot be {block.name}, "
                f"which comes in blocks of {block.weights}"
            )
        nbytes = block.row_bytes(shape[0])
        for size in shape[1:]:
            nbytes *= size
        # trailing ones are how some writers pad the number of dimensions
        while len(shape) > 2 and shape[-1] == 1:
            shape = shape[:-1]
        return Entry(shape[::-1], block, offset, nbytes)

    def _check_overlaps(self) -> None:
        end, before = 0, ""
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1].offset):
            if entry.offset < end:
                raise DamagedFile(f"{self.path}: tensors {shown(before)} and {shown(name)} overlap")
            end, before = entry.offset + entry.nbytes, name
