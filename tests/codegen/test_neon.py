"""Code for ARM on an emulated processor: every command against its numpy meaning, and what it is
made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import TARGETS, KernelKey
from dielet.host.tables import kernel_key
from dielet.program import Command
from dielet.program.commands import ENTRIES, Run
from dielet.program.interpret import execute, view
from tests.models import SPECS, Bench, compiled
from tests.program.test_conformance import compare

from .freestanding import EMULATION, Executable, Piece
from .test_targets import assembly, linear_key, mnemonics

CASES = [
    ("qwen3", "bf16", "neon_bf16"),
    ("qwen3", "int8", "neon"),
    ("llama", "int4", "neon_bf16"),
    ("llama", "bf16", "neon"),
]


def steps() -> Iterator[tuple[str, Run]]:
    """A sequence in two chunks and one token, that token in a batch of two, and the head."""
    yield "prefill_16_kv64", Run(0, 16)
    yield "prefill_16_kv64", Run(16, 5)
    yield "decode_1_kv64", Run(21, 1)
    yield "decode_2_kv64", Run(0, 2, (22, 0))
    yield "head_1", Run(0, 1)
    yield "head_16", Run(0, 7)


@pytest.mark.parametrize(
    ("family", "weights", "target"),
    [pytest.param(*case, marks=EMULATION, id="-".join(case)) for case in CASES],
)
def test_kernels_agree_with_meanings(
    tmp_path: Path, family: str, weights: str, target: str
) -> None:
    files = compiled(tmp_path / "m", SPECS[family], weights=weights, batch_sizes=(2,))
    bench = Bench.of(files, sequences=2)
    programs = {name: files.program(name) for name, _ in steps()}
    keys = [kernel_key(c) for p in programs.values() for c in p.commands]
    executable = Executable(keys, TARGETS[target])
    rng = np.random.default_rng(3)
    for name, run in steps():
        program = programs[name]
        memory = bench.memory(program)
        bench.give(program, memory, rng.integers(0, files.manifest.spec.vocab, run.valid, np.int32))
        for command in program.commands:
            found = emulated(executable, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            compare(command, found, memory, run.valid)


def emulated(
    executable: Executable,
    command: Command,
    memory: dict[str, np.ndarray],
    run: Run,
    kv_bytes: int,
) -> dict[str, np.ndarray]:
    """The written operands after the kernel ran, in three pieces; `memory` is left as it was."""
    entry = ENTRIES[command.kind]
    names = list(dict.fromkeys(o.region.space for o in command.operands))
    spaces = {name: memory[name].copy() for name in names}
    operands = [(names.index(o.region.space), o.region.offset) for o in command.operands]
    pieces = [
        Piece(kernel_key(command), operands, entry.params(command), (piece, piece + 1, 3))
        for piece in (2, 0, 1)
    ]
    rows = [word for row, past in enumerate(run.pasts) for word in (past, row * kv_bytes)]
    executable.run(pieces, list(spaces.values()), [run.past, run.valid, *rows])
    written = entry.writes.replace("?", "").split()
    return {o.role: view(o, spaces) for o in command.operands if o.role in written}


ATTENTION = KernelKey.of("attention", D=64, G=2, T=16, out="bf16")
INSTRUCTIONS = [
    ("neon", linear_key("int8", 16), {"sdot", "fcvtl", "scvtf", "fmla"}),
    ("neon", linear_key("int4", 1, 32, True), {"sdot", "ushr", "fcvtl"}),
    ("neon", linear_key("bf16", 16), {"fmla"}),
    ("neon_bf16", linear_key("bf16", 16), {"bfdot"}),
    ("neon_bf16", linear_key("bf16", 1), {"bfdot"}),
    ("neon", ATTENTION, {"fmla"}),
    ("neon_bf16", ATTENTION, {"bfdot"}),
    ("neon", KernelKey.of("quantize", group=32), {"fabs", "fmul", "xtn"}),
    ("neon", KernelKey.of("rmsnorm", K=256, eps=1e-6, out="f32", group=32), {"fmla", "fsqrt"}),
]


@pytest.mark.parametrize(("target", "key", "wanted"), INSTRUCTIONS, ids=str)
def test_instructions(target: str, key: KernelKey, wanted: set[str]) -> None:
    found = mnemonics(assembly(key, TARGETS[target]))
    assert wanted <= {name.split(".")[0] for name in found}, sorted(found)
