"""The dependencies that programs declare: all orders follow from them, and from no fewer."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from dielet.program import Command, Program, Region
from dielet.program.commands import ENTRIES
from tests.models import LLAMA, QWEN, plan
from tests.program.devices import CASES, cramped, given

WEIGHTS = "weight_copy"
NAMES = ("prefill_16_kv64", "decode_1_kv64", "decode_3_kv64", "head_1")
WRITABLE = ("shared", "scratchpad", "kv", "io", "staging")


def touched(command: Command) -> dict[str, list[tuple[Region, bool]]]:
    """By memory that is written at all: the command's regions, and whether it writes them."""
    found: dict[str, list[tuple[Region, bool]]] = {}
    written = ENTRIES[command.kind].written_roles()
    for operand in command.operands:
        if operand.region.space.partition(".")[0] in WRITABLE:
            access = operand.region, operand.role in written
            found.setdefault(operand.region.space, []).append(access)
    return found


def clashes(program: Program) -> set[tuple[int, int]]:
    """All pairs of commands that share a byte which one of them writes."""
    accesses = list(map(touched, program.commands))
    return {
        (first, second)
        for first, second in combinations(range(len(accesses)), 2)
        if any(
            (writes or wrote) and a.overlaps(b)
            for space in accesses[first].keys() & accesses[second].keys()
            for a, wrote in accesses[first][space]
            for b, writes in accesses[second][space]
        )
    }


def reached(edges: list[list[int]], through: list[bool]) -> list[set[int]]:
    """Per command, those that edges lead back to; `through`: which may stand in between."""
    found: list[set[int]] = []
    for sources in edges:
        found.append(set(sources).union(*(found[s] for s in sources if through[s])))
    return found


def check(program: Program) -> None:
    commands = program.commands
    copies = [command.kind == WEIGHTS for command in commands]
    deps = [list(command.deps) for command in commands]
    pairs = clashes(program)
    assert {(dep, number) for number, mine in enumerate(deps) for dep in mine} <= pairs
    every = reached(deps, [True] * len(deps))
    others = [[d for d in mine if not copies[d] and not copies[n]] for n, mine in enumerate(deps)]
    direct = reached(others, [True] * len(deps))
    for first, second in pairs:
        assert first in every[second], (program.name, first, second)
        if not copies[first] and not copies[second]:
            assert first in direct[second], (program.name, first, second)
    plain = reached(deps, [not copy for copy in copies])
    for number, mine in enumerate(deps):
        for dep in mine:
            chains = (plain[other] for other in mine if other != dep and not copies[other])
            assert not any(dep in chain for chain in chains), (program.name, dep, number)


@pytest.mark.parametrize("case", [("host", 1), ("host", 3), *CASES], ids=str)
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_all_orders_follow_from_the_fewest(family: str, case: tuple) -> None:
    spec = msgspec.structs.replace({"qwen3": QWEN, "llama": LLAMA}[family], layers=2)
    where = given(*case) if len(case) > 2 else {"device": case[0], "chiplets": case[1]}
    model = plan(spec, weights="int8", batch_sizes=(1, 3), **where)
    programs = [program for program in model.programs if program.name in NAMES]
    assert len(programs) == len(NAMES)
    for program in programs:
        check(program)


def test_places_of_weights_that_are_used_again_hide_nothing(tmp_path: Path) -> None:
    """Of two products the second one's weights may come where the first one's were."""
    model = plan(QWEN, weights="bf16", device=cramped(tmp_path, "14 kB"), chiplets=2)
    programs = [program for program in model.programs if program.name in NAMES]
    assert any(c.kind == WEIGHTS and c.deps for program in programs for c in program.commands)
    for program in programs:
        check(program)


def test_a_missing_dependency_is_found() -> None:
    """The check above sees every dependency that is taken away."""
    program = next(p for p in plan(chiplets=2, device="rebel100").programs if p.name == NAMES[1])
    pairs = [(n, dep) for n, c in enumerate(program.commands) for dep in c.deps]
    for number, dep in pairs[:: len(pairs) // 12]:
        commands = list(program.commands)
        deps = tuple(d for d in commands[number].deps if d != dep)
        commands[number] = msgspec.structs.replace(commands[number], deps=deps)
        with pytest.raises(AssertionError):
            check(msgspec.structs.replace(program, commands=tuple(commands)))
