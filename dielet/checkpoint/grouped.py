"""Linears of 4-bit codes, in which runs of inputs share a scale and a zero point.

The value of a code q is scale * (q - zero).  Files have such weights transposed, [K, N], eight
codes in each 32-bit word.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.names import shown
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.checkpoint.source import FileTensor, Source, check_finite
from dielet.errors import DamagedFile
from dielet.formats.ggml import Codes, dequantize
from dielet.formats.packed import GROUPS, WeightFormat

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
Files = Mapping[str, SafetensorsFile]  # by the name of each tensor that they have
WORDS = ("I32",)
_RUNS = tuple(sorted(GROUPS, reverse=True))
_MIDDLE = 8  # the zero point of a symmetric format, and that of our int4 without minima


@dataclass(frozen=True, eq=False)
class Grouped(Source):
    """`group_of`: which group each input is in, [K]; scales: [groups, N]."""

    name: str
    shape: tuple[int, ...]
    qweight: FileTensor
    qzeros: FileTensor
    scales: FileTensor
    group_of: NDArray[np.intp]

    @property
    def where(self) -> str:
        return self.qweight.where

    @abstractmethod
    def _codes(self, lo: int, hi: int) -> U8:
        """Of rows lo..hi-1: [hi - lo, K]."""

    @abstractmethod
    def _zeros(self, lo: int, hi: int) -> U8:
        """Of rows lo..hi-1: [hi - lo, groups]."""

    def _scales(self, lo: int, hi: int) -> NDArray[np.float32]:
        """Of rows lo..hi-1: [hi - lo, groups]."""
        return np.ascontiguousarray(dequantize(self.scales.block, self.scales.columns(lo, hi)).T)

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        values = self._codes(lo, hi).astype(np.float32)
        zeros, scales = self._zeros(lo, hi).astype(np.float32), self._scales(lo, hi)
        first = self.group_of[:: self._run]
        by_run = values.reshape(hi - lo, len(first), self._run)
        by_run -= zeros[:, first, None]
        with np.errstate(invalid="ignore"):  # who asked looks for NaN
            by_run *= scales[:, first, None]
        return values

    @cached_property
    def _run(self) -> int:
        """The longest of 128, 64, 32 and 1 such that runs of so many inputs are in one group."""
        return next((run for run in _RUNS if _is_run(self.group_of, run)), 1)

    @cached_property
    def exact_formats(self) -> tuple[WeightFormat, ...]:
        groups = [group for group in _RUNS if group <= self._run]
        if not groups or not self._half_scales:
            return ()
        zeros = not (self._zeros(0, self.N) == _MIDDLE).all()
        int4 = (WeightFormat("int4", group, minimum=zeros, zeros=zeros) for group in groups)
        return (*int4, *(WeightFormat("int8", group) for group in groups))

    @cached_property
    def _half_scales(self) -> bool:
        """Whether float16 holds the scales."""
        if self.scales.kind == "f16":
            return True
        scales = self._scales(0, self.N)
        with np.errstate(over="ignore"):
            return np.array_equal(scales.astype(np.float16), scales, equal_nan=True)

    def blocks(self, lo: int, hi: int, fmt: WeightFormat | None = None) -> Codes:
        fmt = fmt or self.exact_formats[0]
        assert fmt in self.exact_formats, f"{self.name} is not exactly {fmt.name}"
        first = self.group_of[:: fmt.group]
        codes = self._codes(lo, hi)
        zeros, scales = self._zeros(lo, hi)[:, first], self._scales(lo, hi)[:, first]
        stored, minimum = scales.astype(np.float16), None
        check_finite(stored, f"{self.name} rows {lo}..{hi - 1}")
        if fmt.zeros:
            minimum = -zeros.astype(np.float16)
        elif fmt.kind == "int8":
            by_run = codes.reshape(hi - lo, len(first), fmt.group)
            by_run += (np.uint8(fmt.zero_point) - zeros)[..., None]
        return Codes(codes, stored, minimum)


def _is_run(group_of: NDArray[np.intp], run: int) -> bool:
    if len(group_of) % run:
        return False
    runs = group_of.reshape(-1, run)
    return bool((runs == runs[:, :1]).all())


@lru_cache(maxsize=16)
def in_order(K: int, group: int) -> NDArray[np.intp]:
    """The group of each of K inputs, of which `group` after `group` share one; -1: all of them."""
    return np.arange(K, dtype=np.intp) // (K if group == -1 else group)


def packed_weights(files: Files) -> Iterator[tuple[str, FileTensor]]:
    """The stem of every quantised linear's names, and its words.  DamagedFile, Unsupported."""
    for name, file in files.items():
        stem, _, last = name.rpartition(".")
        if last != "qweight":
            continue
        shape = file.shapes[name]
        if len(shape) != 2 or not all(shape):
            raise DamagedFile(f"{file.path}: {shown(name)} is {list(shape)}; two sizes are needed")
        yield stem, file.tensor(name, WORDS)


def group_count(K: int, group: int) -> int:
    """How many groups K inputs make; -1: one of all of them."""
    return 1 if group == -1 else -(-K // group)


def part(files: Files, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> FileTensor:
    """A tensor that a quantised linear must have.  Raises DamagedFile, Unsupported."""
    file = files.get(name)
    stem = name.rpartition(".")[0]
    if file is None:
        raise DamagedFile(f"{_some(files, stem)}: {shown(stem)} is quantised, but has no {name}")
    if file.shapes[name] != shape:
        raise DamagedFile(
            f"{file.path}: {shown(name)} is {list(file.shapes[name])}, expected {list(shape)}"
        )
    return file.tensor(name, dtypes)


def _some(files: Files, stem: str) -> str:
    return next((str(f.path) for n, f in files.items() if n.startswith(stem + ".")), stem)
