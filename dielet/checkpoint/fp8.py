"""Linears of eight-bit floats, which one scale for each block of the matrix, or row, multiplies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.grouped import Files
from dielet.checkpoint.names import shown
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.safetensors import READABLE_DTYPES, SafetensorsFile
from dielet.checkpoint.source import Derived, FileTensor
from dielet.errors import DamagedFile, Unsupported

_WEIGHTS = ("F8_E4M3", "F8_E5M2")
_SCALES = (*READABLE_DTYPES, "F8_E8M0")
SCALE_NAMES = ("weight_scale_inv", "weight_scale")  # both are factors
# Of activations and of the cache, which are not rounded to eight bits here.
UNUSED = (".input_scale", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale")


@dataclass(frozen=True, eq=False)
class Scaled(Derived):
    """`inner` times `scales` [rows of blocks, columns of blocks]; `block` is (outputs, inputs)."""

    scales: FileTensor
    block: tuple[int, int]

    def rows(self, lo: int, hi: int) -> NDArray[np.float32]:
        values = self.inner.rows(lo, hi)
        if lo == hi:
            return values
        height, width = self.block
        first = lo // height
        scales = self.scales.rows(first, -(-hi // height))
        across = np.repeat(scales, width, axis=1)[:, : self.K]
        for i, factor in enumerate(across, first):
            values[max(lo, i * height) - lo : (i + 1) * height - lo] *= factor
        return values


def fp8_linears(files: Files, how: Quantization) -> Iterator[tuple[Scaled, str]]:
    """The quantised linears among the tensors of `files`, and each one's tensor of scales.

    Raises DamagedFile, Unsupported.
    """
    for name, file in files.items():
        if not name.endswith(".weight") or file.dtype(name) not in _WEIGHTS:
            continue
        stem, shape = name.removesuffix("weight"), file.shapes[name]
        if len(shape) != 2 or not all(shape):
            raise DamagedFile(f"{file.path}: {shown(name)} is {list(shape)}; two sizes are needed")
        scale = next((f"{stem}{last}" for last in SCALE_NAMES if f"{stem}{last}" in files), None)
        if scale is None:
            raise DamagedFile(
                f"{file.path}: {shown(name)} is {file.dtype(name)}, but has no {SCALE_NAMES[0]} "
                f"nor {SCALE_NAMES[1]}"
            )
        scales, block = _scales(files[scale], scale, shape, how.block)
        yield Scaled(file.tensor(name, _WEIGHTS), scales, block), scale


def _scales(
    file: SafetensorsFile, name: str, weight: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[FileTensor, tuple[int, int]]:
    """The scales as a matrix, and the block of each; one scale, one for each row, or of blocks."""
    (N, K), shape = weight, file.shapes[name]
    where = f"{file.path}: {shown(name)} is {list(shape)}"
    if math.prod(shape) == 1:
        block, matrix = (N, K), (1, 1)
    elif block is None and shape in ((N,), (N, 1)):
        block, matrix = (1, K), (N, 1)
    elif block is None:
        raise Unsupported(
            f"{where}, for a weight of {[N, K]} and without a weight_block_size in config.json; "
            "supported: one scale, or one for each row"
        )
    else:
        matrix = (-(-N // block[0]), -(-K // block[1]))
        if shape != matrix:
            raise DamagedFile(
                f"{where}, expected {list(matrix)}: one for each {block[0]} by {block[1]}"
            )
    return replace(file.tensor(name, _SCALES), shape=matrix), block
