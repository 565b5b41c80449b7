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
        """Rows lo..hi-1 in `fmt`, one of `exact_formats` (default: the first), for `packed.pack`.

        Raises NumericError where weights, scales or minima are NaN or infinite.
        """
        raise AssertionError(f"{self.name} has no codes to keep")

    def array(self) -> NDArray[np.float32]:
        """All of a small tensor, in its own shape."""
        return self.rows(0, self.N).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class FileTensor(Source):
    """A tensor inside a mapped file; reading rows leaves none of the file's pages resident."""

    name: str
    shape: tuple[int, ...]
    block: BlockType
    file: FileMap
    offset: int

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
        return self.file.view(self.offset, self.nbytes).reshape(self.N, -1)[lo:hi]

    def _done(self, lo: int, hi: int) -> None:
        row = self.block.row_bytes(self.K)
        self.file.drop(self.offset + lo * row, (hi - lo) * row)

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        values = dequantize(self.block, self._raw(lo, hi))
        self._done(lo, hi)
        return values

    def columns(self, lo: int, hi: int) -> NDArray[np.uint8]:
        """The file's bytes of columns lo..hi-1, copied: uint8 [N, bytes], of single numbers."""
        assert self.block.weights == 1 and 0 <= lo <= hi <= self.K
        width = self.block.nbytes
        raw = self._raw(0, self.N)[:, lo * width : hi * width].copy()
        self._done(0, self.N)
        return raw

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        fmt = fmt or self.exact_format
        assert fmt in self.exact_formats, f"{self.name} is {self.kind}, not exactly {fmt}"
        codes = exact_codes(self.block, self._raw(lo, hi), fmt)
        if codes.scale is None:  # still the file's own bytes
            codes = Codes(codes.values.copy())
        self._done(lo, hi)
        for part in codes:
            if part is not None and part.dtype != np.uint8:
                check_finite(part, f"{self.name} rows {lo}..{hi - 1}")
        return codes

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
    parts: tuple[Source, ...]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self.parts) * self.parts[0].N, self.parts[0].K)

    @property
    def kind(self) -> str:
        return self.parts[0].kind

    @property
    def where(self) -> str:
        return self.parts[0].where

    @cached_property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        return _common([part.exact_formats for part in self.parts])

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

    def _runs(self, lo: int, hi: int) -> list[tuple[Source, int, int]]:
        """The rows of each part that [lo, hi) are made of; one empty run if there are none."""
        N = self.parts[0].N
        found = [
            (part, max(lo - i * N, 0), min(hi - i * N, N)) for i, part in enumerate(self.parts)
        ]
        return [(p, a, b) for p, a, b in found if a < b] or [(self.parts[0], 0, 0)]


@dataclass(frozen=True, eq=False)
class Derived(Source):
    """A tensor that is made of another one, `inner`."""

    inner: Source

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


@dataclass(frozen=True, eq=False)
class Raised(Derived):
    """A small tensor whose file keeps the distance from `by`: the numbers are those plus it."""

    by: float

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        return self.inner.rows(lo, hi) + np.float32(self.by)


@dataclass(frozen=True, eq=False)
class Picked(Derived):
    """Rows of another tensor, or numbers of a vector: the i-th is the order[i]-th of `inner`."""

    order: NDArray[np.intp]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self.order), *self.inner.shape[1:])

    @property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        return self.inner.exact_formats

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        if len(self.shape) == 1:
            return self.inner.rows(lo, hi)[:, self.order]
        first, last, picked = self._span(lo, hi)
        return self.inner.rows(first, last)[picked]

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        first, last, picked = self._span(lo, hi)
        values, scale, minimum = self.inner.blocks(first, last, fmt)
        return Codes(
            values[picked],
            None if scale is None else scale[picked],
            None if minimum is None else minimum[picked],
        )

    def _span(self, lo: int, hi: int) -> tuple[int, int, NDArray[np.intp] | slice]:
        """The run of rows that [lo, hi) are among, and where in it they are."""
        if lo == hi:
            return 0, 0, slice(None)
        used = self.order[lo:hi]
        first, last = int(used.min()), int(used.max()) + 1
        if np.array_equal(used, np.arange(first, last)):
            return first, last, slice(None)
        return first, last, used - first


def _common(formats: list[tuple[WeightFormat, ...]]) -> tuple[WeightFormat, ...]:
    first, others = formats[0], formats[1:]
    return tuple(fmt for fmt in first if all(fmt in other for other in others))


def check_finite(numbers: NDArray[np.float16] | NDArray[np.uint16], where: str) -> None:
    """numbers: float16, or bfloat16 as uint16."""
    exponent, what = (0x7F80, "weights") if numbers.dtype == np.uint16 else (0x7C00, "scales")
    bad = int(np.count_nonzero((numbers.view(np.uint16) & exponent) == exponent))
    if bad:
        raise NumericError(
            f"{where}: {bad} of {numbers.size} {what} are NaN or infinite; the file is damaged"
        )
