"""The arrows of a trace against the dependencies that its programs declare."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from dielet.profiler.names import parse
from dielet.program import Program
from tests.profiler.oracle import Slice, Trace

Command = tuple[int, str, int]  # chiplet, layer, how many of that layer come before it there
Run = tuple[int | None, int, int | None]


def check_arrows(trace: Trace, programs: Mapping[str, Program]) -> int:
    """Each dependency is one arrow, each arrow one dependency; returns how many there are."""
    drawn: dict[Run, Counter[tuple[Command, Command]]] = {
        run_of(piece): Counter() for piece in trace.slices if piece.category == "Device Workload"
    }
    for a, b in trace.edges():
        assert run_of(a) == run_of(b)
        drawn[run_of(a)][command_of(trace, a), command_of(trace, b)] += 1
    for piece in trace.slices:
        if piece.category == "Device Workload":
            declared = dependencies(programs[piece.args["program"]])
            assert drawn[run_of(piece)] == Counter(declared), piece.name
    return sum(counter.total() for counter in drawn.values())


def dependencies(program: Program) -> list[tuple[Command, Command]]:
    """(source, command): all that a program declares, but for those of weights' copies."""
    keys: list[Command] = []
    seen: Counter[tuple[int, str]] = Counter()
    for command in program.commands:
        place = program.queues[command.queue].chiplet, command.layer
        keys.append((*place, seen[place]))
        seen[place] += 1
    neural_dma = [program.queues[c.queue].engine == "neural_dma" for c in program.commands]
    return [
        (keys[dep], keys[number])
        for number, command in enumerate(program.commands)
        for dep in command.deps
        if not neural_dma[dep] and not neural_dma[number]
    ]


def run_of(piece: Slice) -> Run:
    name = parse(piece.name)
    assert name is not None
    return name.instance, name.sequence, name.workload


def command_of(trace: Trace, piece: Slice) -> Command:
    name = parse(piece.name)
    assert name is not None and name.layer is not None and name.command is not None
    chiplet = re.search(r"Chiplet (\d+)", trace.path(piece.track))
    return int(chiplet[1]) if chiplet else 0, name.layer, name.command
