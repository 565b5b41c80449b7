"""Copies and reductions: kernels against meanings, on rectangles of odd sizes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import compile_kernels, host_target
from dielet.host.memory import address
from dielet.host.tables import kernel_key
from dielet.program.commands import ENTRIES, Run
from dielet.program.commands.transfer import TERMS
from dielet.program.interpret import execute
from dielet.program.types import Command, Operand, Region

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
KINDS = ("copy", "weight_copy", "host_copy", "device_copy")


def both(command: Command, size: int, run: Run, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Memory `shared` of random bytes after the kernel, in three pieces, and after the meaning."""
    library = compile_kernels([kernel_key(command)], host_target(), folder)
    kernel = KERNEL(library.address(kernel_key(command)))
    floats = np.random.default_rng(size).standard_normal(size // 4).astype(np.float32)
    raw = np.zeros(size + 64, np.uint8)
    native = raw[-raw.ctypes.data % 64 :][:size]
    native[:] = floats.view(np.uint8)
    meant = native.copy()
    bases = [address(native) + o.region.offset for o in command.operands]
    arrays = [
        np.array(values or [0], np.int64)
        for values in (bases, [*ENTRIES[command.kind].params(command)], [run.past, run.valid])
    ]
    for piece in (1, 0, 2):
        kernel(*map(address, arrays), piece, piece + 1, 3)
    execute(command, {"shared": meant, "kv": meant}, run, size)
    return native, meant


def copy(kind: str, x: Region, y: Region, dtype: str = "f32", **attrs: object) -> Command:
    operands = (Operand("x", x, dtype), Operand("y", y, dtype))
    return Command(kind, 0, "layer", 0, operands, {"extent": "all", **attrs})  # type: ignore[dict-item]


@pytest.mark.parametrize("width", [4, 60, 64, 1024, 1028, 5000])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_any_rectangle_is_copied(tmp_path: Path, rows: int, width: int) -> None:
    stride = width + 12
    x, y = Region("shared", 64, rows, stride, width), Region("shared", 1 << 17, rows, width, width)
    for kind in KINDS if rows == 3 else KINDS[:1]:
        native, meant = both(copy(kind, x, y), 1 << 18, Run(0, 1), tmp_path)
        np.testing.assert_array_equal(native, meant)
        assert (native[1 << 17 :][:width] == native[64 : 64 + width]).all()


@pytest.mark.parametrize("valid", [1, 5, 16])
def test_only_real_rows_are_copied(tmp_path: Path, valid: int) -> None:
    x, y = Region("shared", 0, 16, 256, 256), Region("shared", 8192, 16, 320, 256)
    command = copy("copy", x, y, extent="rows")
    native, meant = both(command, 1 << 14, Run(7, valid), tmp_path)
    np.testing.assert_array_equal(native, meant)
    entry = ENTRIES["copy"]
    assert entry.cost(command, Run(7, valid)).reads == {"x": valid * 256}
    assert entry.cost(command).writes == {"y": 16 * 256}


@pytest.mark.parametrize(("past", "valid"), [(0, 1), (31, 1), (32, 1), (10, 16), (100, 28)])
@pytest.mark.parametrize(("dtype", "width", "each"), [("bf16", 32, 64), ("u8", 34, 34)])
def test_only_positions_in_use_are_copied(
    tmp_path: Path, past: int, valid: int, dtype: str, width: int, each: int
) -> None:
    heads, capacity = 2, 128
    row = each * capacity
    x, y = Region("kv", 0, heads, row, row), Region("shared", 1 << 15, heads, row, row)
    command = copy("copy", x, y, dtype, extent="positions", width=width)
    native, meant = both(command, 1 << 16, Run(past, valid), tmp_path)
    np.testing.assert_array_equal(native, meant)
    used = -(-(past + valid) // 32) * 32 * each
    assert ENTRIES["copy"].cost(command, Run(past, valid)).reads == {"x": heads * used}


def test_codes_travel_with_their_scales_and_sums(tmp_path: Path) -> None:
    parts = {"": ("s8", 64), "_scale": ("f32", 8), "_sum": ("i32", 8)}
    operands = [
        Operand(role + suffix, Region("shared", base + 512 * i, 4, width, width), dtype)
        for role, base in (("x", 0), ("y", 4096))
        for i, (suffix, (dtype, width)) in enumerate(parts.items())
    ]
    command = Command("copy", 0, "layer", 0, tuple(operands), {"extent": "rows"})
    native, meant = both(command, 1 << 13, Run(0, 3), tmp_path)
    np.testing.assert_array_equal(native, meant)
    assert (native[4096 + 512 :][:24] == native[512:][:24]).all()


@pytest.mark.parametrize("count", [1, 2, 4, TERMS])
@pytest.mark.parametrize("residual", [False, True])
def test_partial_sums_are_added_in_order(tmp_path: Path, count: int, residual: bool) -> None:
    roles = [f"x{n}" for n in range(count)] + ["residual"] * residual + ["y"]
    operands = [
        Operand(role, Region("shared", 4096 * i, 5, 384 + 128 * (i % 2), 384), "f32")
        for i, role in enumerate(roles)
    ]
    attrs = {"count": count, "residual": residual}
    command = Command("reduce", 0, "layer", 0, tuple(operands), attrs)  # type: ignore[arg-type]
    native, meant = both(command, 1 << 16, Run(0, 4), tmp_path)
    np.testing.assert_array_equal(native, meant)
    assert ENTRIES["reduce"].cost(command).ops == {"f32": (count + residual - 1) * 5 * 96}


def test_a_sync_changes_nothing(tmp_path: Path) -> None:
    operand = Operand("x", Region("shared", 0, 1, 64, 64), "f32")
    command = Command("device_sync", 0, "layer", 0, (operand,), {})
    native, meant = both(command, 1 << 10, Run(0, 1), tmp_path)
    np.testing.assert_array_equal(native, meant)
    cost = ENTRIES["device_sync"].cost(command)
    assert not sum(cost.reads.values()) and not sum(cost.writes.values())
