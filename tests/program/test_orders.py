"""Programs give the same bits in every order that their waits permit, on memory full of NaN."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.errors import InternalError
from dielet.image import ModelFiles
from dielet.program import Program, check_happens_before, verify_program
from dielet.program.commands import Run
from dielet.program.interpret import as_early, as_late, interpret, schedule, shuffled
from tests.models import SPECS, Bench, compiled, outside, plan

CASES = [
    ("qwen3", "int8", 4, "bf16"),
    ("qwen3", "bf16", 3, "int8"),
    ("llama", "int4", 2, "bf16"),
    ("llama", "bf16", 1, "bf16"),
]


def expect_the_same_bits(files: ModelFiles) -> None:
    """Of a prompt in two chunks and one token more, whatever the order of its commands."""
    ids = np.arange(21, dtype=np.int32) * 7 % files.manifest.spec.vocab
    results = []
    for order in (as_early, as_late, shuffled(1), shuffled(2)):
        bench = Bench.of(files)
        for past, n, name in ((0, 16, "prefill_16_kv64"), (16, 4, "prefill_16_kv64"), (20, 1, "")):
            program = files.program(name or "decode_1_kv64")
            memory = bench.memory(program)
            bench.give(program, memory, ids[past : past + n])
            interpret(program, memory, Run(past, n), order)
        results.append(outside(program, memory, "hidden_out")[:1].copy())
    assert np.isfinite(results[0]).all()
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize(("family", "weights", "chiplets", "kv"), CASES)
def test_every_order_gives_the_same_bits(
    tmp_path: Path, family: str, weights: str, chiplets: int, kv: str
) -> None:
    files = compiled(tmp_path / "m", SPECS[family], weights=weights, chiplets=chiplets, kv=kv)
    expect_the_same_bits(files)


@pytest.mark.parametrize("chiplets", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("family", SPECS)
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_programs_are_legal_and_free_of_races(family: str, weights: str, chiplets: int) -> None:
    model = plan(SPECS[family], weights=weights, chiplets=chiplets)
    sizes = {
        "weights": model.decoder.nbytes,
        "head": model.head.nbytes,
        "embedding": model.embedding_bytes,
        "cos": model.table_bytes // 2,
        "sin": model.table_bytes // 2,
        "kv": model.kv.nbytes,
    }
    for program in model.programs:
        verify_program(program, sizes)
        compared = check_happens_before(program)
        assert compared or chiplets == 1


def without_wait(program: Program, number: int) -> Program:
    commands = list(program.commands)
    commands[number] = msgspec.structs.replace(commands[number], waits=())
    return msgspec.structs.replace(program, commands=tuple(commands))


def test_a_missing_wait_is_found() -> None:
    program = next(p for p in plan(chiplets=4).programs if p.name == "prefill_16_kv64")
    waiting = [n for n, c in enumerate(program.commands) if c.waits]
    assert len(waiting) > 20
    for number in waiting:
        with pytest.raises(InternalError, match="not ordered"):
            check_happens_before(without_wait(program, number))


def test_a_wait_for_a_signal_that_never_comes_is_found() -> None:
    program = next(p for p in plan(chiplets=2).programs if p.name == "decode_1_kv64")
    silent = msgspec.structs.replace(
        program,
        commands=tuple(msgspec.structs.replace(c, signals=False) for c in program.commands),
    )
    with pytest.raises(InternalError, match="every queue waits"):
        schedule(silent, as_early)
    with pytest.raises(InternalError, match="waits for"):
        verify_program(silent, {s: 1 << 40 for s in ("weights", "cos", "sin", "kv")})


def test_out_of_bounds_bytes_are_found() -> None:
    program = plan().programs[0]
    with pytest.raises(InternalError, match="ends at"):
        verify_program(program, {"weights": 64, "cos": 1 << 30, "sin": 1 << 30, "kv": 1 << 30})
