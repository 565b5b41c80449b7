"""Instructions that a decode step and a prefill chunk take, counted by callgrind; and what the hot
loops of the targets that this machine may not have are made of.

A small fixed model on one worker, for the best target that valgrind knows. Wall time is never
asserted. After a deliberate change: `python -m tests.codegen.test_counts` records the new numbers.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from dielet.checkpoint.spec import ModelSpec
from dielet.codegen import TARGETS
from dielet.host.tables import kernel_key
from dielet.program.commands import ENTRIES
from tests.models import Bench, compiled

from .freestanding import Executable, Piece, needs
from .test_hot_loops import attention, hot_loop, linear

RECORDED = Path(__file__).with_name("counts.json")
MARGIN = 1.05
TARGET = TARGETS["avx2"]
MODEL = ModelSpec(
    model_type="qwen3",
    hidden=256,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=64,
    intermediate=512,
    vocab=512,
    norm_eps=1e-6,
    rope_theta=1e4,
    max_position=4096,
    tied=True,
    qk_norm=True,
)
WEIGHTS = ("bf16", "int8", "int4")
RUNS = {"prefill_32_kv64": (0, 32), "decode_1_kv64": (40, 1), "head_1": (0, 1)}  # past, valid
LOOPS = {
    **{
        f"{name} T={T}": linear(name, T)
        for name in ("bf16", "int8g64", "int4g32m")
        for T in (1, 128)
    },
    **{f"attention T={T}": attention(T) for T in (1, 128)},
}
LOOP_TARGETS = ("avx2", "neon", "neon_bf16", "plain")


def count(weights: str, folder: Path) -> dict[str, dict[str, int]]:
    """Instructions of each program by kernel family."""
    files = compiled(folder / "m", MODEL, weights=weights, prefill_chunk=32)
    bench = Bench.of(files)
    found = {}
    for name, (past, valid) in RUNS.items():
        program = files.program(name)
        memory = {space: content.copy() for space, content in bench.memory(program).items()}
        for space, content in memory.items():
            if space not in files.spaces():
                content[:] = 0
        order = list(memory)
        pieces = [
            Piece(
                kernel_key(c),
                [(order.index(o.region.space), o.region.offset) for o in c.operands],
                ENTRIES[c.kind].params(c),
            )
            for c in program.commands
        ]
        executable = Executable([piece.kernel for piece in pieces], TARGET)
        report = folder / f"{name}.callgrind"
        callgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={report}")
        executable.run(pieces, list(memory.values()), [past, valid], callgrind)
        found[name] = by_family(report.read_text())
    return found


def by_family(report: str) -> dict[str, int]:
    """A callgrind report's own costs, summed over the kernels of a family."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    called = False
    for line in report.splitlines():
        if named := re.match(r"c?fn=\((\d+)\)(?: (\S+))?", line):
            if named[2]:
                names[named[1]] = named[2]
            if line.startswith("fn="):
                function = names[named[1]]
        elif line.startswith("calls="):
            called = True  # the next line is the cost of what was called
        elif cost := re.match(r"[+-]?\d+ (\d+)$|\* (\d+)$", line):
            if not called:
                costs[re.sub(r"_[0-9a-f]{16}$", "", function)] += int(cost[1] or cost[2])
            called = False
    total = int(re.search(r"^totals: (\d+)", report, re.MULTILINE)[1])  # type: ignore[index]
    assert sum(costs.values()) == total, "the report was not understood"
    return dict(sorted(costs.items()))


@needs("x86_64", "valgrind")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_instructions_of_a_step(weights: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text())["steps"][weights]
    found = count(weights, tmp_path)
    for name, families in recorded.items():
        assert families.keys() == found[name].keys()
        for family, instructions in families.items():
            assert found[name][family] <= instructions * MARGIN, f"{name} {family}"


@pytest.mark.parametrize("target", LOOP_TARGETS)
@pytest.mark.parametrize("name", LOOPS)
def test_hot_loop(target: str, name: str) -> None:
    dots, instructions, spilled = json.loads(RECORDED.read_text())["loops"][target][name]
    found = hot_loop(LOOPS[name], TARGETS[target])
    assert found[0] == dots
    assert found[1] <= instructions * MARGIN
    assert found[2] <= spilled


def record() -> None:
    loops = {
        target: {name: hot_loop(key, TARGETS[target]) for name, key in LOOPS.items()}
        for target in LOOP_TARGETS
    }
    with tempfile.TemporaryDirectory() as folder:
        steps = {weights: count(weights, Path(folder) / weights) for weights in WEIGHTS}
    RECORDED.write_text(json.dumps({"steps": steps, "loops": loops}, indent=1) + "\n")


if __name__ == "__main__":
    record()
