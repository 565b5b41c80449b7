"""Where a tensor's numbers come from: read in rows, never as a whole."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.filemap import FileMap
from dielet.errors import NumericError
from dielet.formats.ggml import BlockType, Codes, dequantize, exact_codes
from dielet.formats.packed import WeightFormat


class Source(ABC):
    """One tensor of a checkpoint.

    `shape` is the tensor's own, (N, K) or (K,); for rows, a vector is one row.  Every method may
    be called from several threads at once.
    """

    name: str  # as the file calls it, for messages
    shape: tuple[int, ...]

    @property
    @abstractmethod
    def kind(self) -> str:
        """Number format in the file, lower case: "bf16", "f16", "q4_1", "random", ..."""

    @property
    def where(self) -> str:
        """The file that it is in, if any, for messages."""
        return ""

    @property
    def N(self) -> int:
        """Rows."""
        return self.shape[0] if len(self.shape) == 2 else 1

    @property
    def K(self) -> int:
        """Columns."""
        return self.shape[-1]

    @property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        """The formats that hold these very values, the smallest first."""
        return ()

    @property
    def exact_format(self) -> WeightFormat | None:
        """The smallest format that holds these very values, if there is one."""
        return next(iter(self.exact_formats), None)

    @abstractmethod
    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        """Rows lo..hi-1: a fresh float32 [hi - lo, K]."""

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        """Rows lo..hi-1 as they are, in `fmt` (default `exact_format`), for `packed.pack`.

        Raises NumericError where weights, scales or minima are NaN or infinite.
        """
        raise AssertionError(f"{self.name} has no exact format")

    def array(self) -> NDArray[np.float32]:
        """All of a small tensor, in its own shape."""
        return self.rows(0, self.N).reshape(self.shape)

    def samples(self) -> bytes:
        """A few of its bytes from three places, to tell one checkpoint from another."""
        return b""


@dataclass(frozen=True, eq=False)
class FileTensor(Source):
    """A tensor inside a mapped file; reading rows leaves none of the file's pages resident.

    `order`, if given, says which row of the file each row of the tensor is.
    """

    name: str
    shape: tuple[int, ...]
    block: BlockType
    file: FileMap
    offset: int
    order: NDArray[np.intp] | None = None

    @property
    def kind(self) -> str:
        return self.block.name.lower()

    @property
    def where(self) -> str:
        return str(self.file.path)

    @cached_property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.N * self.block.row_bytes(self.K)

    @property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        return tuple(WeightFormat.parse(name) for name in self.block.exact)

    def _raw(self, lo: int, hi: int) -> NDArray[np.uint8]:
        """The file's bytes of rows lo..hi-1: uint8 [hi - lo, row bytes]."""
        assert 0 <= lo <= hi <= self.N
        raw = self.file.view(self.offset, self.nbytes).reshape(self.N, -1)
        return raw[lo:hi] if self.order is None else raw[self.order[lo:hi]]

    def _done(self, lo: int, hi: int) -> None:
        row = self.block.row_bytes(self.K)
        if self.order is not None and hi > lo:
            used = self.order[lo:hi]
            lo, hi = int(used.min()), int(used.max()) + 1
        self.file.drop(self.offset + lo * row, (hi - lo) * row)

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        values = dequantize(self.block, self._raw(lo, hi))
        self._done(lo, hi)
        return values

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        fmt = fmt or self.exact_format
        assert fmt in self.exact_formats, f"{self.name} is {self.kind}, not exactly {fmt}"
        codes = exact_codes(self.block, self._raw(lo, hi), fmt)
        if codes.scale is None:  # still the file's own bytes
            codes = Codes(codes.values.copy())
        self._done(lo, hi)
        for part in codes:
            if part is not None and part.dtype != np.uint8:
                _check_finite(part, f"{self.name} rows {lo}..{hi - 1}")
        return codes

    def samples(self) -> bytes:
        size = min(self.nbytes, 4096)
        starts = (0, (self.nbytes - size) // 2, self.nbytes - size)
        return b"".join(self.file.view(self.offset + start, size).tobytes() for start in starts)

    def same_bytes(self, other: "FileTensor") -> bool:
        """Whether both hold the same numbers in the same format."""
        if (self.shape, self.block) != (other.shape, other.block):
            return False
        step = max(1, (1 << 22) // self.block.row_bytes(self.K))
        for lo in range(0, self.N, step):
            hi = min(self.N, lo + step)
            if not np.array_equal(self._raw(lo, hi), other._raw(lo, hi)):
                return False
            self._done(lo, hi)
            other._done(lo, hi)
        return True


@dataclass(frozen=True, eq=False)
class Stacked(Source):
    """Tensors of one shape and format, one below the other."""

    name: str
    parts: tuple[FileTensor, ...]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self.parts) * self.parts[0].N, self.parts[0].K)

    @property
    def kind(self) -> str:
        return self.parts[0].kind

    @property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        return self.parts[0].exact_formats

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        runs = [part.rows(a, b) for part, a, b in self._runs(lo, hi)]
        return runs[0] if len(runs) == 1 else np.concatenate(runs)

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        runs = [part.blocks(a, b, fmt) for part, a, b in self._runs(lo, hi)]
        if len(runs) == 1:
            return runs[0]
        scales = [run.scale for run in runs if run.scale is not None]
        minima = [run.minimum for run in runs if run.minimum is not None]
        return Codes(
            np.concatenate([run.values for run in runs]),
            np.concatenate(scales) if scales else None,
            np.concatenate(minima) if minima else None,
        )

    def _runs(self, lo: int, hi: int) -> list[tuple[FileTensor, int, int]]:
        """The rows of each part that [lo, hi) are made of; one empty run if there are none."""
        N = self.parts[0].N
        found = [
            (part, max(lo - i * N, 0), min(hi - i * N, N)) for i, part in enumerate(self.parts)
        ]
        return [(p, a, b) for p, a, b in found if a < b] or [(self.parts[0], 0, 0)]

    def samples(self) -> bytes:
        return b"".join(part.samples() for part in self.parts)


@dataclass(frozen=True, eq=False)
class Raised(Source):
    """A small tensor whose file keeps the distance from `by`: the numbers are those plus it."""

    inner: Source
    by: float

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.inner.shape

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def where(self) -> str:
        return self.inner.where

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        return self.inner.rows(lo, hi) + np.float32(self.by)

    def samples(self) -> bytes:
        return self.inner.samples()


def _check_finite(numbers: NDArray[np.float16] | NDArray[np.uint16], where: str) -> None:
    """numbers: float16, or bfloat16 as uint16."""
    exponent, what = (0x7F80, "weights") if numbers.dtype == np.uint16 else (0x7C00, "scales")
    bad = int(np.count_nonzero((numbers.view(np.uint16) & exponent) == exponent))
    if bad:
        raise NumericError(
            f"{where}: {bad} of {numbers.size} {what} are NaN or infinite; the file is damaged"
        )
