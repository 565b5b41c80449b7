"""Single commands timed on this machine, run by the very loop and kernels that run models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet import paths
from dielet.codegen import compile_kernels, host_target
from dielet.host.memory import Bases, anonymous
from dielet.host.tables import build_tables, kernel_key
from dielet.host.team import Team
from dielet.image.file import map_file
from dielet.program.sync import synchronise
from dielet.program.types import Command, Program, Queue

# Bytes, mapped from a file as weights are.  Of what is read in turns caches keep a part: with only
# six times their size reading is 7 % too fast.
WEIGHTS = 768 << 20
CACHE = 96 << 20
SHARED = 64 << 20  # every operand of the longest series of commands
LONG_ENOUGH = 20_000_000  # ns
BYTE = 0x3C  # every number made of it is about one, in every format


@dataclass
class Bench:
    """Memory that commands can work on, filled with ordinary numbers."""

    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)
    bases: Bases = field(default_factory=Bases)

    def __post_init__(self) -> None:
        path = Path(self.folder.name) / "weights"
        with path.open("wb") as file:
            for _ in range(WEIGHTS >> 20):
                file.write(bytes([BYTE]) * (1 << 20))
        self.bases["weights"] = np.frombuffer(map_file(path), np.uint8)
        for space, size in {"kv": CACHE, "shared": SHARED, "io": SHARED, "cos": 1 << 20,
                            "sin": 1 << 20}.items():  # fmt: skip
            memory = anonymous(size)
            memory[:] = BYTE
            self.bases[space] = memory

    def time(
        self,
        commands: Sequence[Command],
        workers: int,
        past: int = 0,
        valid: int = 1,
        rounds: int = 5,
        together: bool = False,
    ) -> Run:
        """Run `commands` on `workers`, split over them, or with `together` one each in turn."""
        for command in commands:
            for operand in command.operands:
                assert operand.region.end <= len(self.bases[operand.region.space]), operand
        program = _program(commands, workers if together else 1)
        keys = [kernel_key(c) for c in commands]
        kept = paths.cache_dir("native")
        library = compile_kernels(keys, host_target(kept), kept)
        tables = build_tables(program, workers, library.address, lambda: program)
        team = Team(library, workers)
        binding = np.array([past, valid], np.int64)
        found = []
        begun = library.clock(), perf_counter_ns()
        for _ in range(rounds + 1):  # the first one warms up
            team.run(tables, self.bases.table, binding)
            found.append([stamps.copy() for stamps in tables.stamps])
        while perf_counter_ns() - begun[1] < LONG_ENOUGH:
            pass  # the rate of the ticks is only known over a while
        scale = (perf_counter_ns() - begun[1]) / (library.clock() - begun[0])
        team.close()
        return Run([[s.astype(np.float64) * scale for s in r] for r in found[1:]])


@dataclass(frozen=True)
class Run:
    """Rounds of stamps: per worker [pieces, 2], start and end in nanoseconds."""

    rounds: list[list[NDArray[np.float64]]]

    def command(self, chosen: Sequence[bool]) -> float:
        """Nanoseconds that one of the chosen pieces of worker 0 takes on average."""
        these = np.array(chosen)
        return _usual([float((r[0][these, 1] - r[0][these, 0]).mean()) for r in self.rounds])

    def step(self) -> float:
        """Nanoseconds from a piece's start to the next one's, on one worker."""
        return float(np.median([np.median(np.diff(s[:, 0])) for r in self.rounds for s in r]))

    def whole(self) -> float:
        """Nanoseconds from the first start to the last end of a round, on average."""
        return _usual([max(s[-1, 1] for s in r) - min(s[0, 0] for s in r) for r in self.rounds])


def _usual(rounds: Sequence[float]) -> float:
    """The mean of all but the slowest fifth of the rounds.

    What holds up a command now and then, of those that stream from memory one in ten for a third of
    its time, is part of every step of a model, and no median has it. What happens once is not.
    """
    return float(np.mean(np.sort(rounds)[: -(len(rounds) // 5) or None]))


def _program(commands: Sequence[Command], members: int) -> Program:
    """The commands as a program, `members` at a time side by side."""
    program = Program(
        name="bench",
        phase="decode",
        tokens=1,
        capacity=0,
        device="host",
        chiplets=1,
        queues=(Queue(0, "core"),),
        commands=tuple(commands),
        groups=tuple(n // members for n in range(len(commands))),
        sizes={},
        io={},
    )
    deps = synchronise(program).commands
    return msgspec.structs.replace(program, commands=deps)
