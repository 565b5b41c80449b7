"""Call generated kernels from numpy, and small independent references of what they should give."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from dielet.codegen import KernelKey, Target, compile_kernels, host_target
from dielet.codegen.library import Library

from .freestanding import executable, runs_here

HOST = host_target()
PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)
Share = tuple[int, int, int]
WHOLE: tuple[Share, ...] = ((0, 1, 1),)
SPLITS: tuple[tuple[Share, ...], ...] = (
    WHOLE,
    ((0, 1, 2), (1, 2, 2)),
    ((2, 3, 3), (0, 1, 3), (1, 2, 3)),
    ((0, 0, 4), (0, 3, 7), (3, 7, 7)),
)


@cache
def _cache_dir() -> Path:
    return Path(tempfile.mkdtemp(prefix="dielet-test-"))


@cache
def library(key: KernelKey, target: Target) -> Library:
    return compile_kernels([key], target, _cache_dir())


def call(
    key: KernelKey,
    operands: Sequence[np.ndarray],
    params: Sequence[int] = (),
    *,
    past: int = 0,
    valid: int = 1,
    batch: Sequence[int] = (),
    shares: Sequence[Share] = WHOLE,
    target: Target = HOST,
) -> None:
    """Run every share of a kernel over arrays that it reads and writes in place, emulated where
    this machine cannot run the target.

    batch: position and cache offset of each row, one after the other.
    """
    binding = np.array([past, valid, *batch], np.int64)
    if not runs_here(target):
        executable(key, target).call(key, operands, params, binding, shares)
        return
    function = PROTOTYPE(library(key, target).address(key))
    table = np.array([a.ctypes.data for a in operands], np.uint64)
    numbers = np.array([*params, 0], np.int64)
    for share in shares:
        function(table.ctypes.data, numbers.ctypes.data, binding.ctypes.data, *share)


def padded(rows: int) -> int:
    return -(-rows // 16) * 16


def poisoned(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """Fresh memory in which an unwritten byte shows: NaN as any float, -1 as any integer."""
    return (
        np.full(np.prod(shape) * np.dtype(dtype).itemsize, 0xFF, np.uint8)
        .view(dtype)
        .reshape(shape)
    )


def to_bf16(x: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def quantised(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(s8 [T, K], scale f32 [T, K/group], sum i32 [T, K/group])"""
    rows, columns = x.shape
    groups = x.reshape(rows, columns // group, group).astype(np.float32)
    scale = (np.abs(groups).max(-1) / np.float32(127)).astype(np.float32)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    q = np.rint(groups * inverse[..., None]).astype(np.int8)
    return q.reshape(rows, columns), scale, q.astype(np.int32).sum(-1, dtype=np.int32)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference by the largest magnitude; NaN when a NaN was left."""
    return float(np.abs(got - want).max() / np.abs(want).max())
