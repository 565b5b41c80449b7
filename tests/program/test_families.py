"""Every family's programs: legal, free of races, and kernels that do what the meanings say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import compile_kernels, host_target
from dielet.host.tables import kernel_key
from dielet.program import check_happens_before, verify_program
from dielet.program.commands import ENTRIES, Run
from dielet.program.interpret import execute, view
from tests.families import FAMILIES, spec_of
from tests.models import Bench, compiled, outside, plan
from tests.program.devices import CASES, given
from tests.program.test_chiplets import COPIES, sizes
from tests.program.test_conformance import compare, run_kernel

HOST = [("host", None, n, None) for n in (2, 3)]
CHIPLETS = [CASES[0], CASES[2], CASES[4], CASES[5]]
STEPS = [
    ("prefill_16_kv64", Run(0, 16)),
    ("prefill_16_kv64", Run(16, 5)),
    ("decode_1_kv64", Run(21, 1)),
    ("decode_2_kv64", Run(0, 2, (22, 0))),
    ("head_1", Run(0, 1)),
]


@pytest.mark.parametrize("case", [*HOST, *CHIPLETS], ids=str)
@pytest.mark.parametrize("weights", ["bf16", "int4"])
@pytest.mark.parametrize("name", FAMILIES)
def test_programs_are_legal_and_free_of_races(name: str, weights: str, case: tuple) -> None:
    model = plan(spec_of(name), weights=weights, batch_sizes=(2,), **given(*case))
    for program in model.programs:
        verify_program(program, sizes(model))
        assert check_happens_before(program)


@pytest.mark.parametrize("case", [HOST[1], CHIPLETS[0]], ids=str)
@pytest.mark.parametrize("weights", ["bf16", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_agree_with_meanings(tmp_path: Path, name: str, weights: str, case: tuple) -> None:
    """Command by command; and the numpy meanings alone give finite numbers to the end."""
    files = compiled(
        tmp_path / "m", spec_of(name), weights=weights, batch_sizes=(2,), **given(*case)
    )
    bench = Bench.of(files, sequences=2)
    programs = {step: files.program(step) for step, _ in STEPS}
    keys = [kernel_key(c) for p in programs.values() for c in p.commands]
    library = compile_kernels(keys, host_target(), tmp_path / "cache")
    ids = np.random.default_rng(3).integers(0, files.manifest.spec.vocab, 40, np.int32)
    for step, run in STEPS:
        program = programs[step]
        memory = bench.memory(program)
        bench.give(program, memory, ids[run.past : run.past + run.valid])
        for command in program.commands:
            kernel = library.address(kernel_key(command))
            found = run_kernel(kernel, command, memory, run, program.sizes["kv"])
            execute(command, memory, run, program.sizes["kv"])
            if command.kind not in COPIES:  # see test_transfer: their padding is as it was
                compare(command, found, memory, run.valid)
        result = "logits" if program.phase == "head" else "hidden_out"
        assert np.isfinite(outside(program, memory, result)[: run.valid, :331]).all()


def test_a_row_reads_its_chosen_experts_alone(tmp_path: Path) -> None:
    """The weights of all others may be anything, and are not counted."""
    files = compiled(tmp_path / "m", spec_of("qwen3_moe"), weights="bf16", chiplets=2)
    bench, run = Bench.of(files), Run(0, 1)
    program = files.program("decode_1_kv64")
    memory = bench.memory(program)
    memory["weights"] = memory["weights"].copy()
    bench.give(program, memory, np.array([7], np.int32))
    keys = [kernel_key(c) for c in program.commands]
    library = compile_kernels(keys, host_target(), tmp_path / "cache")
    poisoned = 0
    for command in program.commands:
        packed = [o for o in command.operands if o.dtype == "packed" and "experts" in command.attrs]
        for operand in packed:
            cost = ENTRIES[command.kind].cost(command, run)
            assert cost.reads[operand.role] * 8 == operand.region.nbytes * 3
            chosen = view(command.operand("routes"), memory)[0, :3].astype(int)
            weights = view(operand, memory).reshape(8, -1)
            weights[[e for e in range(8) if e not in chosen]] = 0xFF  # NaN in bf16
            poisoned += 1
        found = run_kernel(
            library.address(kernel_key(command)), command, memory, run, program.sizes["kv"]
        )
        execute(command, memory, run, program.sizes["kv"])
        if packed:
            assert np.isfinite(found["y"]).all() or found["y"].dtype != np.float32
            compare(command, found, memory, 1)
    assert poisoned == 2 * 3 * 2  # layers, matrices, chiplets
    assert np.isfinite(outside(program, memory, "hidden_out")).all()
