"""A reader of .safetensors files that trusts nothing: sizes, offsets and names are all checked.

A file is an 8-byte little-endian header length, that many bytes of JSON, and the data.  The JSON
maps each tensor to dtype, shape and [begin, end) within the data, which must be covered exactly.
"""

import json
import math
from pathlib import Path
from typing import Any

from dielet.checkpoint.filemap import FileMap
from dielet.checkpoint.names import shown
from dielet.checkpoint.source import FileTensor
from dielet.errors import DamagedFile, Unsupported
from dielet.formats.fp8 import FP8
from dielet.formats.ggml import BY_NAME

_HEADER_LIMIT = 100_000_000  # the format's own
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
READABLE_DTYPES = ("BF16", "F16", "F32")
_BLOCKS = BY_NAME | FP8


class SafetensorsFile:
    """The tensors of one file: `shapes` by name, `tensor(name)`.

    Raises DamagedFile or MissingFile when opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = FileMap(path)
        header, self._data = self._read_header()
        self.header = header
        entries = _parse(path, header)
        entries.pop("__metadata__", None)
        self._entries = {name: self._check(name, entry) for name, entry in entries.items()}
        self._check_coverage()
        self.shapes = {name: shape for name, (_, shape, _, _) in self._entries.items()}

    def dtype(self, name: str) -> str:
        """What the file calls the tensor's number format."""
        return self._entries[name][0]

    def tensor(self, name: str, dtypes: tuple[str, ...] = READABLE_DTYPES) -> FileTensor:
        """The tensor; raises Unsupported for a dtype that is none of `dtypes`."""
        dtype, shape, begin, _ = self._entries[name]
        if dtype not in dtypes:
            raise Unsupported(
                f"{self.path}: tensor {shown(name)} is {dtype}; supported: {', '.join(dtypes)}"
            )
        return FileTensor(name, shape or (1,), _BLOCKS[dtype], self.file, self._data + begin)

    def _read_header(self) -> tuple[bytes, int]:
        if self.file.size < 8:
            raise DamagedFile(f"{self.path}: {self.file.size} bytes are too few for safetensors")
        length = int.from_bytes(self.file.view(0, 8).tobytes(), "little")
        if length > min(_HEADER_LIMIT, self.file.size - 8):
            raise DamagedFile(
                f"{self.path}: the header claims {length} bytes, the file has "
                f"{self.file.size - 8} after the length field; it is truncated or not safetensors"
            )
        return self.file.view(8, length).tobytes(), 8 + length

    def _check(self, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
        """One entry of the header -> (dtype, shape, begin, end), or DamagedFile."""
        where = f"{self.path}: tensor {shown(name)}"
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise DamagedFile(f"{where}: its entry must have dtype, shape and data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise DamagedFile(f"{where}: dtype {shown(dtype, 40)} is not one of {', '.join(_BITS)}")
        if not _counts(shape) or len(shape) > 8:
            raise DamagedFile(f"{where}: shape {shown(shape)} is not a list of sizes")
        if not _counts(offsets) or len(offsets) != 2:
            raise DamagedFile(f"{where}: data_offsets {shown(offsets)} are not two positions")
        begin, end = offsets
        available = self.file.size - self._data
        if not begin <= end <= available:
            raise DamagedFile(
                f"{where}: its bytes {begin}..{end} do not lie in the {available} bytes of data; "
                "the file is truncated"
            )
        bits = math.prod(shape) * _BITS[dtype]
        if bits != (end - begin) * 8:
            raise DamagedFile(
                f"{where}: {dtype} {shape} needs {-(-bits // 8)} bytes, "
                f"its data_offsets hold {end - begin}"
            )
        return dtype, tuple(shape), begin, end

    def _check_coverage(self) -> None:
        """The format allows neither overlaps nor gaps."""
        position = 0
        for name, (_, _, begin, end) in sorted(self._entries.items(), key=lambda e: e[1][2:]):
            if begin != position:
                what = "overlaps another tensor" if begin < position else "follows a gap"
                raise DamagedFile(
                    f"{self.path}: tensor {shown(name)} {what}: it begins at {begin}, "
                    f"the one before ends at {position}"
                )
            position = end
        if position != self.file.size - self._data:
            raise DamagedFile(
                f"{self.path}: tensors end at {position}, "
                f"but there are {self.file.size - self._data} bytes of data"
            )


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise ValueError("a name occurs twice")
        return entries

    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: the header is not valid JSON ({error})") from error
    if not isinstance(entries, dict):
        raise DamagedFile(f"{path}: the header is not a JSON object")
    return entries


def _counts(value: Any) -> bool:
    """A list of integers that are not negative, nor so large that they are nonsense."""
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in value)
