"""One program on one device: when each command runs, what bounds it, what everything waits for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.devices import Device
from dielet.errors import Unsupported
from dielet.host.deal import deal
from dielet.program import Program
from dielet.program.commands import Run
from dielet.program.records import BOUNDS, Execution, Lane
from dielet.simulator import native
from dielet.simulator.costs import Costs, Work
from dielet.simulator.machine import Machine
from dielet.simulator.tasks import LONGEST, MAX_LEG_BYTES, PER_SECOND, Tasks, Walk

I64 = NDArray[np.int64]
COMPUTE, MEMORY, LINK, WAIT, SETUP = range(len(BOUNDS))


@dataclass(frozen=True)
class Timing:
    """A program walked on a device; all times in ps from its start.

    lane_names[lane] names an engine's queue or a worker; `commands` is the command of each task,
    of which a worker's are parts.  kinds: of each resource, as in `Machine`.
    """

    program: Program
    device: Device
    tasks: Tasks
    walk: Walk
    commands: I64
    shares: NDArray[np.float64]  # the part of its command that each task is
    lane_names: tuple[str, ...]
    kinds: tuple[str, ...]
    moved: dict[str, int]  # bytes by memory and link

    @property
    def duration(self) -> int:
        return int(self.walk.end.max(initial=0))

    @cached_property
    def bound(self) -> NDArray[np.uint8]:
        """Per task an index into BOUNDS: what took most of the time since its lane was free."""
        work = self._work_bounds()
        waited = self.walk.start - self._freed()
        setup = self.tasks.setup
        rest = self.walk.end - self.walk.start - setup
        found = np.where(setup > rest, SETUP, work)
        return np.where(waited > np.maximum(setup, rest), WAIT, found).astype(np.uint8)

    def _work_bounds(self) -> I64:
        """What held up each task's work: its computation, or a resource by its kind."""
        kinds = np.array([LINK if kind == "link" else MEMORY for kind in self.kinds] or [MEMORY])
        limiter = self.walk.limiter
        return np.where(limiter < 0, COMPUTE, kinds[np.maximum(limiter, 0)])

    def _freed(self) -> I64:
        """When the task before each one on its lane ended."""
        freed = np.zeros(len(self.tasks), np.int64)
        order = np.argsort(self.tasks.lane, kind="stable")
        lanes = self.tasks.lane[order]
        follows = np.concatenate([[False], lanes[1:] == lanes[:-1]])
        freed[order[1:]] = self.walk.end[order[:-1]]
        freed[order[~follows]] = 0
        return freed

    def critical_path(self) -> list[int]:
        """The tasks, last first, of which each one's start was decided by the next one's end."""
        path = []
        task = int(self.walk.end.argmax()) if len(self.tasks) else -1
        while task >= 0:
            path.append(task)
            task = int(self.walk.cause[task])
        return path

    @cached_property
    def bound_by(self) -> dict[str, int]:
        """The program's duration by what bounded it along the critical path, in ps."""
        total = dict.fromkeys(BOUNDS, 0)
        path = np.array(self.critical_path(), np.int64)
        if not len(path):
            return total
        start, end = self.walk.start[path], self.walk.end[path]
        setup, work = self.tasks.setup[path], self._work_bounds()[path]
        before = np.append(end[1:], 0)  # when the task that decided the start had ended
        total["wait"] = int((start - before).sum())  # until its signal was seen
        total["setup"] = int(setup.sum())
        for index, name in ((COMPUTE, "compute"), (MEMORY, "memory"), (LINK, "link")):
            total[name] += int((end - start - setup)[work == index].sum())
        return total

    def engines(self) -> list[dict[str, Any]]:
        """Of every lane: its name, and its time busy, waiting before a command, and done, in ps."""
        busy = np.bincount(
            self.tasks.lane, self.walk.end - self.walk.start, minlength=self.tasks.lanes
        )
        waited = np.bincount(
            self.tasks.lane, self.walk.start - self._freed(), minlength=self.tasks.lanes
        )
        return [
            {
                "name": name,
                "busy_ps": int(busy[lane]),
                "waiting_ps": int(waited[lane]),
                "idle_ps": self.duration - int(busy[lane]) - int(waited[lane]),
            }
            for lane, name in enumerate(self.lane_names)
        ]

    def execution(
        self, instance: int, sequence: int, workload: int, at: int, run: Run
    ) -> Execution:
        """The records of one run of the program that starts at `at` ps."""
        lanes = []
        for number, name in enumerate(self.lane_names):
            mine = np.flatnonzero(self.tasks.lane == number)
            lanes.append(
                Lane(
                    name,
                    self.commands[mine].astype(np.int32),
                    self.walk.start[mine] + at,
                    self.walk.end[mine] + at,
                    self.shares[mine] if self.device.shared_memory == "device" else None,
                )
            )
        bound = np.zeros(len(self.program.commands), np.uint8)
        bound[self.commands] = self.bound
        return Execution(
            self.program, "modelled", instance, sequence, workload, run.past, run.valid,
            tuple(lanes), bound,
        )  # fmt: skip


def simulate_program(
    program: Program, device: Device, run: Run | None = None, workers: int | None = None
) -> Timing:
    """Walk `program` on `device`.

    run: what is bound at run time, for devices that skip padding.  workers: threads that the
    commands are dealt over, where chiplets share one memory; default: one per chiplet.
    """
    machine = Machine(device)
    if device.local_memory:
        builder = _queues(program, machine, Costs(machine, run))
    else:
        workers = program.chiplets if workers is None else workers
        builder = _workers(program, machine, Costs(machine, run, workers > 1), workers)
    tasks = builder.tasks(machine)
    return Timing(
        program=program,
        device=device,
        tasks=tasks,
        walk=native.walk(tasks),
        commands=np.array(builder.commands, np.int64),
        shares=np.array(builder.shares),
        lane_names=builder.lane_names,
        kinds=tuple(machine.kinds),
        moved=builder.moved,
    )


class _Builder:
    """Collects the arrays of `Tasks`, command after command."""

    def __init__(self, lane_names: tuple[str, ...]) -> None:
        self.lane_names = lane_names
        self.commands: list[int] = []
        self.shares: list[float] = []
        self.moved: dict[str, int] = {}
        self._lane: list[int] = []
        self._works: list[Work] = []
        self._waits: list[int] = []
        self._delays: list[int] = []
        self._wait_counts: list[int] = []

    def add(
        self,
        command: int,
        lane: int,
        work: Work,
        waits: Iterable[tuple[int, int]],
        share: float = 1.0,
    ) -> None:
        """One task; `waits` are (task, delay)."""
        self.commands.append(command)
        self.shares.append(share)
        self._lane.append(lane)
        self._works.append(work)
        before = len(self._waits)
        for task, delay in waits:
            self._waits.append(task)
            self._delays.append(delay)
        self._wait_counts.append(len(self._waits) - before)

    def tasks(self, machine: Machine) -> Tasks:
        legs = [leg for work in self._works for leg in work.legs]
        largest = max((leg[0] for leg in legs), default=0)
        if largest > MAX_LEG_BYTES:
            raise Unsupported(
                f"one command moves {largest / 1e9:.1f} GB; the simulator takes at most "
                f"{MAX_LEG_BYTES / 1e9:.1f} GB: divide the model over more chiplets"
            )
        self._check_length(legs, machine)
        for work in self._works:
            for name, nbytes in work.moved:
                self.moved[name] = self.moved.get(name, 0) + nbytes
        return Tasks(
            lanes=len(self.lane_names),
            lane=_array(self._lane),
            setup=_array([work.setup for work in self._works]),
            compute=_array([work.compute for work in self._works]),
            wait_first=_firsts(self._wait_counts),
            wait_task=_array(self._waits),
            wait_delay=_array(self._delays),
            leg_first=_firsts([len(work.legs) for work in self._works]),
            leg_bytes=_array([leg[0] for leg in legs]),
            path_first=_firsts([len(leg[1]) for leg in legs]),
            path=_array([resource for leg in legs for resource in leg[1]]),
            capacity=_array([max(1, rate // PER_SECOND) for rate in machine.rates]),
        )

    def _check_length(self, legs: list[tuple[int, tuple[int, ...]]], machine: Machine) -> None:
        """Raise Unsupported when times, all one after the other, could not be told in ps."""
        nbytes = np.repeat([float(leg[0]) for leg in legs], [len(leg[1]) for leg in legs])
        rates = np.array([float(rate) for rate in machine.rates])
        path = _array([resource for leg in legs for resource in leg[1]])
        total = 1e12 * float((nbytes / rates[path]).sum()) if legs else 0.0
        total += sum(float(work.setup) + float(work.compute) for work in self._works)
        total += sum(map(float, self._delays))
        if total > LONGEST:
            raise Unsupported(
                f"the commands of one program take {total / 1e12:.3g} s one after the other; the "
                f"simulator takes at most {LONGEST / 1e12:.0f} s: are the device's rates and times "
                "as meant?"
            )


def _array(values: list[int]) -> I64:
    return np.array(values, np.int64)


def _firsts(counts: list[int]) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(_array(counts), dtype=np.int64)])


def _queues(program: Program, machine: Machine, costs: Costs) -> _Builder:
    """Every queue of the program is a lane; it waits for the commands that signal to it."""
    queues = program.queues
    builder = _Builder(tuple(f"c{q.chiplet}.{q.engine}" for q in queues))
    delays = [
        [machine.signal(source.chiplet, target.chiplet) for source in queues] for target in queues
    ]
    signalled: list[list[int]] = [[] for _ in queues]
    for number, command in enumerate(program.commands):
        lane = command.queue
        work = costs.of(command, queues[lane], lane)
        waits = [(signalled[w.queue][w.count - 1], delays[lane][w.queue]) for w in command.waits]
        builder.add(number, lane, work, waits)
        if command.signals:
            signalled[lane].append(number)
    return builder


def _workers(program: Program, machine: Machine, costs: Costs, workers: int) -> _Builder:
    """Every worker is a lane; its pieces wait for what others have done, as on the host."""
    builder = _Builder(tuple(f"worker {n}" for n in range(workers)))
    delay = machine.device.signal.chiplet
    dealt = deal(program, workers)
    firsts = np.cumsum([0, *map(len, dealt)]).tolist()  # each worker's tasks are in one run
    for worker, pieces in enumerate(dealt):
        for piece in pieces:
            command = program.commands[piece.command]
            work = costs.of(command, program.queues[command.queue], worker)
            waits = [(firsts[other] + count - 1, delay) for other, count in piece.waits]
            share = piece.hi * work.units // piece.den - piece.lo * work.units // piece.den
            part = _part(work, share)
            builder.add(piece.command, worker, part, waits, (piece.hi - piece.lo) / piece.den)
    return builder


def _part(work: Work, share: int) -> Work:
    """What a worker has of a command, in its indivisible units; every part has the set-up."""
    whole = work.units
    if share == whole:
        return work
    legs = tuple((n, path) for nbytes, path in work.legs if (n := nbytes * share // whole))
    moved = tuple((name, nbytes * share // whole) for name, nbytes in work.moved)
    return Work(work.setup, work.compute * share // whole, legs, moved, share)
