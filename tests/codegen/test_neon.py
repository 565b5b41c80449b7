"""Code for ARM on an emulated processor: every command against its numpy meaning, and what it is
made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dielet.checkpoint.spec import ModelSpec
from dielet.codegen import TARGETS, KernelKey
from dielet.codegen.kernels import FAMILIES
from dielet.host.tables import kernel_key
from dielet.program import Command
from dielet.program.commands import ENTRIES, Run
from dielet.program.interpret import execute, view
from tests.families import spec_of
from tests.models import SPECS, Bench, compiled
from tests.program.test_conformance import compare

from .freestanding import EMULATION, EMULATORS, Executable, Piece
from .harness import call, poisoned, to_bf16
from .test_targets import assembly, linear_key, mnemonics

CHIPLETS = {"device": "rebel100", "partition": "column_row", "chiplets": 2}
CASES = {
    "qwen3 bf16": (SPECS["qwen3"], "neon_bf16", {"weights": "bf16"}),
    "qwen3 int8": (SPECS["qwen3"], "neon", {"weights": "int8", "kv": "int8"}),
    "llama int4": (SPECS["llama"], "neon_bf16", {"weights": "int4", "kv": "int8"}),
    "llama bf16": (SPECS["llama"], "neon", {"weights": "bf16", **CHIPLETS}),
    "qwen3_moe int8": (spec_of("qwen3_moe"), "neon", {"weights": "int8"}),
    "gemma3 bf16": (spec_of("gemma3", num_hidden_layers=2), "neon_bf16", {"weights": "bf16"}),
}
seen: set[str] = set()


def steps() -> Iterator[tuple[str, Run]]:
    """A sequence in two chunks and one token, that token in a batch of two, and the head."""
    yield "prefill_16_kv64", Run(0, 16)
    yield "prefill_16_kv64", Run(16, 5)
    yield "decode_1_kv64", Run(21, 1)
    yield "decode_2_kv64", Run(0, 2, (22, 0))
    yield "head_1", Run(0, 1)
    yield "head_16", Run(0, 7)


@pytest.mark.parametrize(
    ("spec", "target", "options"),
    [pytest.param(*case, marks=EMULATION, id=name) for name, case in CASES.items()],
)
def test_kernels_agree_with_meanings(
    tmp_path: Path, spec: ModelSpec, target: str, options: dict[str, str]
) -> None:
    files = compiled(tmp_path / "m", spec, batch_sizes=(2,), **options)
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
            family = kernel_key(command).family
            seen.add(family)
            found = emulated(executable, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            if family != "copy":
                compare(command, found, memory, run.valid)
                continue
            for operand in command.operands:  # bytes, whatever they mean
                if operand.role in found:
                    moved = found[operand.role]
                    np.testing.assert_array_equal(moved, view(operand, memory))


@pytest.mark.parametrize("target", [pytest.param(t, marks=EMULATION) for t in EMULATORS])
def test_convert(target: str) -> None:
    x = np.random.default_rng(2).standard_normal((16, 96)).astype(np.float32)
    x[0, :5] = [np.inf, -np.inf, 3.3e38, 0.0, np.float32(1 + 2**-8)]  # a tie
    y = poisoned((16, 96), np.uint16)
    call(KernelKey.of("convert"), [x, y], [96, 96, 96, 0, 16], valid=16, target=TARGETS[target])
    np.testing.assert_array_equal(y, to_bf16(x))


def test_every_kernel_family_was_seen() -> None:
    if not seen:
        pytest.skip("runs after the others of this file")
    # embed is no command (see test_targets), and `nothing` does nothing.
    assert set(FAMILIES) - seen == {"embed", "nothing"}


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
