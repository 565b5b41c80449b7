"""What the innermost loops are made of, counted: speed is guarded without a clock.

Counted for one fixed processor, so that the numbers do not depend on the machine of the test. A row
of the table: dots in the loop, instructions, vectors that are spilled. Wall time is never asserted.
After a deliberate change: `python -m tests.codegen.test_hot_loops` prints the new table.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dielet.codegen import TARGETS, KernelKey, Target, jit
from dielet.codegen.function import Module
from dielet.codegen.kernels import generate

TARGET = TARGETS["avx512"]
DOTS = {  # multiplications where there is no dot
    "avx512": "vpdpbusd|vdpbf16ps",
    "avx2": "vpmaddubsw|vfmadd\\d+ps",
    "neon": "sdot|fmla",
    "neon_bf16": "sdot|bfdot",
    "plain": "pmuludq|mulps",
}
INSTRUCTION = re.compile(r"^\t[a-z]", re.MULTILINE)
SPILL = re.compile(r"(zmm.*64|ymm.*32|xmm.*16|\tst[rp]\tq.*)-byte (Folded )?Spill")
MARGIN = 1.05


def linear(name: str, T: int) -> KernelKey:
    format, group, minimum = {
        "bf16": ("bf16", 0, False),
        "int8g64": ("int8", 64, False),
        "int8g128": ("int8", 128, False),
        "int4g32": ("int4", 32, False),
        "int4g32m": ("int4", 32, True),
    }[name]
    static = {"format": format, "group": group, "minimum": minimum, "residual": False}
    return KernelKey.of("linear", K=2048, T=T, bias=False, **static)


def attention(T: int, **options: str) -> KernelKey:
    return KernelKey.of("attention", D=128, G=2, T=T, out="bf16", **options)


# Of several rows this is the tile of eight rows that stands alone: it waits for memory.
LOOPS = {
    linear("bf16", 1): (128, 295, 0),
    linear("int8g64", 1): (128, 339, 0),
    linear("int8g128", 1): (256, 611, 0),
    linear("int4g32", 1): (32, 145, 0),
    linear("int4g32m", 1): (32, 154, 0),
    linear("bf16", 128): (256, 432, 0),
    linear("int8g64", 128): (256, 516, 2),
    linear("int8g128", 128): (512, 931, 2),
    linear("int4g32", 128): (128, 325, 2),
    linear("int4g32m", 128): (128, 347, 2),
    attention(1): (32, 125, 0),
    attention(128): (128, 319, 0),
    attention(1, kv="int8"): (64, 202, 0),
    attention(128, kv="int8"): (128, 328, 0),
}


def assembly(key: KernelKey, target: Target) -> str:
    module = Module(target.fused)
    generate(module, target, key)
    return jit.emit_assembly(str(module), target)


def hot_loop(key: KernelKey, target: Target = TARGET) -> tuple[int, int, int]:
    """(dots, instructions, spilled vectors) of the block with the most dots."""
    text = assembly(key, target)
    dot = re.compile(rf"^\t({DOTS[target.name]})\b", re.MULTILINE)
    blocks = re.split(r"^\.LBB\d+_\d+:", text, flags=re.MULTILINE)
    block = max(blocks, key=lambda b: len(dot.findall(b)))
    return len(dot.findall(block)), len(INSTRUCTION.findall(block)), len(SPILL.findall(block))


@pytest.mark.parametrize("key", LOOPS, ids=str)
def test_hot_loop(key: KernelKey) -> None:
    dots, instructions, spilled = hot_loop(key)
    recorded = LOOPS[key]
    assert dots == recorded[0]
    assert instructions <= recorded[1] * MARGIN
    assert spilled <= recorded[2]


@pytest.mark.parametrize("name", ["bf16", "int8g64", "int8g128", "int4g32", "int4g32m"])
def test_tiles_of_many_rows_stay_in_registers(name: str) -> None:
    text = assembly(linear(name, 128), replace(TARGET, few_rows=()))
    assert re.search(DOTS["avx512"], text)
    assert not SPILL.search(text)


if __name__ == "__main__":
    for key in LOOPS:
        print(key, hot_loop(key))
