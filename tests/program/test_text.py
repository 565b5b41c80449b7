"""What is printed from programs and entries: the reference page, listings, and their replay."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dielet.codegen import TARGETS
from dielet.codegen.library import kernel_unit
from dielet.host.tables import kernel_key
from dielet.program import Program
from dielet.program.explain import explain
from dielet.program.reference import reference
from tests.models import LLAMA, QWEN, SPECS, plan

ROOT = Path(__file__).parent.parent.parent


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page == reference(), "run python tools/reference.py"


@pytest.mark.parametrize("name", ["prefill_16_kv64", "decode_1_kv64", "head_1"])
def test_listings(golden: Callable[[str, str], None], name: str) -> None:
    one_layer = msgspec.structs.replace(QWEN, layers=1)
    programs = plan(one_layer, chiplets=2, weights="int8").programs
    program = next(p for p in programs if p.name == name)
    golden(f"qwen3-int8-2.{name}.txt", "\n".join(explain(program)) + "\n")


def test_one_chiplet_of_a_listing() -> None:
    program = plan(chiplets=4).programs[0]
    lines = [line for line in explain(program, chiplet=3) if " c" in line[:8]]
    assert lines and all(" c3.core " in line[:16] for line in lines)


def test_a_program_survives_the_round_trip() -> None:
    for program in plan(LLAMA, chiplets=3).programs:
        blob = msgspec.msgpack.encode(program)
        assert msgspec.msgpack.decode(blob, type=Program) == program


def replay() -> dict[str, str]:
    """For a corpus of tiny models, a hash of every listing and of all generated code."""
    hashes: dict[str, str] = {}
    grid = itertools.product(SPECS, ("bf16", "int8", "int4"), (1, 2, 4))
    extra = [("qwen3", "int8", 3), ("llama", "int4", 8)]
    for family, weights, chiplets in (*grid, *extra):
        digest = hashlib.sha256()
        keys = {}
        for program in plan(SPECS[family], weights=weights, chiplets=chiplets).programs:
            for line in explain(program):
                digest.update(line.encode())
            keys |= {str(key): key for key in map(kernel_key, program.commands)}
        code = hashlib.sha256()
        for name in sorted(keys):
            code.update(str(kernel_unit(keys[name], TARGETS["avx512"]).write()).encode())
        hashes[f"{family} {weights} {chiplets}"] = (
            f"{digest.hexdigest()[:16]} {code.hexdigest()[:16]}"
        )
    return hashes


def test_replay(golden: Callable[[str, str], None]) -> None:
    """A refactoring changes no program and no kernel: listing hash, then code hash."""
    golden("replay.json", json.dumps(replay(), indent=1) + "\n")
