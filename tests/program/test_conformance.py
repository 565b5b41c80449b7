"""Every command's generated kernel against its numpy meaning, command by command, in real programs.

One table for all commands: whatever the programs contain is tested, and the test fails if an entry
of the command set never occurs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import compile_kernels, host_target
from dielet.host.memory import Bases, address
from dielet.host.tables import build_tables, kernel_key
from dielet.program import Command, Program
from dielet.program.commands import ENTRIES, Run
from dielet.program.commands.attention import CACHES
from dielet.program.commands.cache import read_keys, read_values
from dielet.program.interpret import execute, view
from dielet.program.types import Operand
from tests.models import SPECS, Bench, compiled

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
CASES = [
    ("qwen3", "int8", 1, "bf16"),
    ("qwen3", "bf16", 2, "bf16"),
    ("llama", "int4", 2, "int8"),
    ("llama", "bf16", 3, "bf16"),
    ("qwen3", "int4", 4, "bf16"),
    ("qwen3", "bf16", 3, "int8"),
]
# What rounding to a format may add to an entry's tolerance.
ROUNDING = {"f32": 0.0, "bf16": 2**-7, "s8": 1 / 127, "u8": 1 / 127, "i32": 0.02}
seen: set[str] = set()


def steps() -> Iterator[tuple[str, Run]]:
    """The same bench runs all of them: a sequence in two chunks and more, then a batch of five."""
    for past, valid in ((0, 16), (16, 5), (21, 1), (22, 2), (24, 16), (40, 1)):
        yield ("prefill_16_kv64" if valid > 1 else "decode_1_kv64"), Run(past, valid)
    for round_ in range(3):
        yield "decode_5_kv64", Run(0, 5, tuple(past + round_ for past in (41, 0, 0, 0, 0)))
    yield "decode_5_kv64", Run(0, 2, (44, 3))
    yield "head_1", Run(0, 1)
    yield "head_16", Run(0, 7)


@pytest.mark.parametrize(("family", "weights", "chiplets", "kv"), CASES)
def test_kernels_agree_with_meanings(
    tmp_path: Path, family: str, weights: str, chiplets: int, kv: str
) -> None:
    given = {"weights": weights, "chiplets": chiplets, "batch_sizes": (5,), "kv": kv}
    files = compiled(tmp_path / "m", SPECS[family], **given)
    bench = Bench.of(files, sequences=5)
    programs = {name: files.program(name) for name, _ in steps()}
    keys = [kernel_key(c) for p in programs.values() for c in p.commands]
    library = compile_kernels(keys, host_target(), tmp_path / "cache")
    rng = np.random.default_rng(3)
    for name, run in steps():
        program = programs[name]
        memory = bench.memory(program)
        ids = rng.integers(0, files.manifest.spec.vocab, run.valid, np.int32)
        bench.give(program, memory, ids)
        addresses = {space: address(bytes_) for space, bytes_ in memory.items()}
        for command in program.commands:
            seen.add(command.kind)
            kernel = library.address(kernel_key(command))
            by_kernel = run_kernel(kernel, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            compare(command, by_kernel, memory, run.valid)
        assert addresses == {space: address(bytes_) for space, bytes_ in memory.items()}


def run_kernel(
    kernel: int, command: Command, memory: dict[str, np.ndarray], run: Run, kv_bytes: int
) -> dict[str, np.ndarray]:
    """The written operands after the kernel ran, in three pieces; `memory` is left as it was.

    A batch's cache operands are offsets; each row's binding has the address of its own cache.
    """
    entry = ENTRIES[command.kind]
    spaces = {o.region.space for o in command.operands if o.role in entry.writes.replace("?", "")}
    before = {space: memory[space].copy() for space in spaces}
    bases = {space: address(bytes_) for space, bytes_ in memory.items()}
    rows = [(past, bases["kv"] + row * kv_bytes) for row, past in enumerate(run.pasts)]
    if command.attrs.get("batch"):
        bases["kv"] = 0
    operands = np.array([bases[o.region.space] + o.region.offset for o in command.operands])
    params = np.array(entry.params(command), np.int64)
    binding = np.array([run.past, run.valid, *(word for row in rows for word in row)], np.int64)
    for piece in (2, 0, 1):
        arrays = (address(operands), address(params), address(binding))
        KERNEL(kernel)(*arrays, piece, piece + 1, 3)
    written = {
        o.role: view(o, memory).copy()
        for o in command.operands
        if o.role in entry.writes.replace("?", "").split()
    }
    for space in spaces:
        memory[space][:] = before[space]
    return written


def compare(
    command: Command, found: dict[str, np.ndarray], memory: dict[str, np.ndarray], valid: int
) -> None:
    for operand in command.operands:
        if operand.role not in found:
            continue
        rows = slice(None) if operand.region.space == "kv" else slice(real_rows(command, valid))
        expected, got = view(operand, memory)[rows], found[operand.role][rows]
        where = f"{command.kind} {command.layer} {operand.role}"
        if command.kind == "select":
            np.testing.assert_array_equal(expected, got, err_msg=where)
            continue
        read = cached if operand.dtype == "u8" and operand.role in CACHES else numbers_of
        a, b = read(expected, command, operand), read(got, command, operand)
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{where}: other places are NaN"
        largest = max(float(np.nanmax(np.abs(a), initial=0)), 1e-6)
        worst = float(np.nanmax(np.abs(a - b), initial=0)) / largest
        bound = ENTRIES[command.kind].tolerance + ROUNDING[operand.dtype]
        assert worst <= bound, f"{where}: off by {worst:.2g} of the largest"


def real_rows(command: Command, valid: int) -> int:
    if "row0" not in command.attrs:
        return valid
    return int(np.clip(valid - int(command.attrs["row0"]), 0, None))


def cached(values: np.ndarray, command: Command, operand: Operand) -> np.ndarray:
    """The numbers of every head of an int8 cache; NaN where nothing was written."""
    read = read_keys if operand.role == "k_cache" else read_values
    return np.stack([read(head.copy(), "int8", int(command.attrs["D"])) for head in values])


def numbers_of(values: np.ndarray, command: Command, operand: Operand) -> np.ndarray:
    return numbers(values, operand.dtype)


def numbers(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def test_every_command_was_seen() -> None:
    if not seen:
        pytest.skip("runs after the others of this file")
    elsewhere = {"convert", "route", "experts_gated", "experts_sum"}  # test_families
    never = set(ENTRIES) - seen - elsewhere
    never -= {k for k, e in ENTRIES.items() if e.engine == "dma" or k == "reduce"}  # test_transfer
    assert not never, f"no program of this test has {never}"


def test_pieces_of_any_number_of_workers_cover_the_command(tmp_path: Path) -> None:
    program: Program = compiled(tmp_path / "m", chiplets=3).program("prefill_16_kv64")
    for workers in (1, 2, 3, 5):
        tables = build_tables(program, workers, lambda key: 1, lambda: program)
        parts: dict[int, list[tuple[int, int]]] = {}
        for mine in tables.pieces:
            for piece in mine:
                parts.setdefault(piece.command, []).append((piece.lo, piece.hi))
        for command in range(len(program.commands)):
            edges = sorted(parts[command])
            assert edges[0][0] == 0 and edges[-1][1] == workers
            assert all(a[1] == b[0] for a, b in pairwise(edges))


def test_bases_keep_their_memory_alive() -> None:
    bases = Bases()
    bases["io"] = np.arange(4, dtype=np.uint8)
    assert bases["io"][3] == 3 and bases.table.any()
