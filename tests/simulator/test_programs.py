"""Programs on devices: laws that hold for all, closed forms of single commands, records."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dielet.devices import device_text, load_device, overridden, read_device
from dielet.devices.device import Device
from dielet.errors import Unsupported
from dielet.program import Command, Operand, Program, Region
from dielet.program.commands import ENTRIES, Run
from dielet.program.records import BOUNDS
from dielet.program.types import Queue
from dielet.simulator import Timing, simulate, simulate_program, walk
from dielet.simulator.costs import Costs, Rates, interpolated
from dielet.simulator.machine import Machine, Place, mesh_route
from dielet.simulator.tasks import PER_SECOND
from tests.models import LLAMA, QWEN, plan
from tests.program.devices import CASES, cramped, given

QWEN_17B = Path(__file__).parent / "configs" / "qwen3-1.7b.json"
HOST = ("host", None, None, None)


def timings(case: tuple, weights: str = "bf16", **changes: str) -> list[Timing]:
    model = plan(QWEN, weights=weights, **given(*case))
    device = overridden(model.device, changes) if changes else model.device
    return [simulate_program(p, device, Run(20, p.tokens)) for p in model.programs]


@pytest.mark.parametrize("case", [*CASES, HOST], ids=str)
def test_never_faster_than_any_resource_or_chain(case: tuple) -> None:
    for timing in timings(case):
        tasks, walk = timing.tasks, timing.walk
        assert (walk.end - walk.start >= tasks.setup + tasks.compute).all()
        for resource, rate in enumerate(tasks.capacity):
            legs = [
                int(tasks.leg_bytes[leg])
                for leg in range(len(tasks.leg_bytes))
                if resource in tasks.path[tasks.path_first[leg] : tasks.path_first[leg + 1]]
            ]
            assert timing.duration >= sum(legs) * 10**12 // (int(rate) * PER_SECOND)
        finish: list[int] = []
        free = [0] * tasks.lanes
        for task in range(len(tasks)):  # the longest chain of set-ups and computations
            waits = range(tasks.wait_first[task], tasks.wait_first[task + 1])
            begin = max(
                [free[tasks.lane[task]]]
                + [finish[tasks.wait_task[w]] + int(tasks.wait_delay[w]) for w in waits
                   if tasks.wait_task[w] < len(finish)]
            )  # fmt: skip
            finish.append(begin + int(tasks.setup[task] + tasks.compute[task]))
            free[tasks.lane[task]] = finish[-1]
        assert timing.duration >= max(finish)


@pytest.mark.parametrize("case", [CASES[1], CASES[4], HOST], ids=str)
def test_what_it_reports_adds_up(case: tuple) -> None:
    for timing in timings(case):
        assert sum(timing.bound_by.values()) == timing.duration
        assert set(timing.bound_by) == set(BOUNDS)
        for engine in timing.engines():
            parts = [engine[f"{name}_ps"] for name in ("busy", "waiting", "idle")]
            assert min(parts) >= 0 and sum(parts) == timing.duration
        path = timing.critical_path()
        ends = timing.walk.end[path]
        assert ends[0] == timing.duration and (np.diff(ends) <= 0).all()


@pytest.mark.parametrize("case", [CASES[0], CASES[1], HOST], ids=str)
def test_the_same_program_takes_the_same_time(case: tuple) -> None:
    for a, b in zip(timings(case), timings(case), strict=True):
        np.testing.assert_array_equal(a.walk.start, b.walk.start)
        np.testing.assert_array_equal(a.walk.end, b.walk.end)


FASTER = [
    {"memory.dram.bandwidth": "x2"},
    {"engine.neural.peak.bf16": "x4"},
    {"engine.task_dma.setup": "x0.5"},
    {"link.die_to_die.bandwidth": "x2", "memory.shared.bandwidth": "x2"},
]


@pytest.mark.parametrize("changes", FASTER, ids=str)
def test_faster_parts_never_hurt_much(changes: dict[str, str]) -> None:
    """Sharing can reorder things, so a little; never as much as the anomaly of list schedules."""
    for before, after in zip(timings(CASES[1]), timings(CASES[1], **changes), strict=True):
        assert after.duration <= 1.02 * before.duration


def test_more_slots_for_pieces_of_the_same_size_never_hurt_much(tmp_path: Path) -> None:
    """Cut into as many pieces, and given more room to wait in."""
    durations = []
    for slots in (1, 2, 3, 4):
        path = Path(cramped(tmp_path, f"{10 * slots} KiB", "1 MB"))
        path.write_text(path.read_text().replace("slots = 3", f"slots = {slots}"))
        model = plan(QWEN, weights="bf16", device=str(path), chiplets=2, kv_ladder=(128,))
        program = next(p for p in model.programs if p.phase == "decode")
        durations.append(simulate_program(program, model.device).duration)
    assert durations[1] < durations[0]
    for fewer, more in pairwise(durations):
        assert more <= 1.02 * fewer


def test_more_slots_in_the_same_scratchpad_cost_what_beginning_more_pieces_costs() -> None:
    """Smaller pieces of the same weights: each has a set-up and waits for the memory's first byte.

    Why 8 slots are slower than 3, and that there is nothing else to it.
    """
    device = load_device("rebel100")
    begin = device.engine["neural_dma"].setup + device.memory["dram"].latency
    found: list[tuple[int, int]] = []  # a chiplet's pieces, and how long a step takes
    for slots in ("3", "8", "16"):
        changes = {"engine.neural_dma.slots": slots}
        answer = simulate(QWEN_17B, device, 16, 2, changes=changes, max_seq_len=512, layers=4)
        decoder, _ = answer.clock.timings(answer.decode[0])
        queue = decoder.program.queues.index(Queue(1, "neural_dma"))
        pieces = sum(command.queue == queue for command in decoder.program.commands)
        found.append((pieces, decoder.duration))
    assert found[0][0] < found[1][0] < found[2][0]
    for (fewer, before), (more, after) in pairwise(found):
        added = (more - fewer) * begin
        assert 0.8 * added <= after - before <= 1.02 * added


def test_padding_is_skipped_on_the_host_and_computed_elsewhere() -> None:
    for case, skips in ((HOST, True), (CASES[0], False)):
        model = plan(LLAMA, weights="bf16", **given(*case))
        program = next(p for p in model.programs if p.phase == "prefill")
        few, many = (simulate_program(program, model.device, Run(0, n)).duration for n in (2, 16))
        assert (few < many) == skips


def test_workers_beside_each_other_compute_slower() -> None:
    model = plan(QWEN, weights="int8")
    prefill, decode = (
        next(p for p in model.programs if p.phase == phase) for phase in ("prefill", "decode")
    )

    def compute(program: Program, alongside: int, workers: int) -> int:
        core = replace(model.device.engine["core"], alongside=alongside)
        device = replace(model.device, engine={"core": core})
        timing = simulate_program(program, device, Run(3, program.tokens), workers)
        return int(timing.tasks.compute.sum())

    whole = compute(prefill, 100, 2)
    assert compute(prefill, 50, 2) == pytest.approx(2 * whole, rel=1e-6)
    assert compute(prefill, 50, 1) == compute(prefill, 100, 1)
    assert compute(decode, 50, 2) == compute(decode, 100, 2)  # one row waits for memory


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_host_is_dealt_over_workers(workers: int) -> None:
    model = plan(QWEN, weights="bf16", chiplets=2)
    for program in model.programs:
        timing = simulate_program(program, model.device, Run(3, program.tokens), workers)
        assert timing.tasks.lanes == workers
        parts = np.bincount(timing.commands, timing.shares, minlength=len(program.commands))
        np.testing.assert_allclose(parts, 1)


def test_records_for_the_profiler() -> None:
    for case in (CASES[1], HOST):
        timing = timings(case)[0]
        found = timing.execution(0, 3, 1, 1000, Run(5, 7))
        assert (found.clock, found.sequence, found.workload) == ("modelled", 3, 1)
        assert found.start == 1000 + int(timing.walk.start.min())
        assert found.end == 1000 + timing.duration
        assert sum(len(lane.commands) for lane in found.lanes) == len(timing.tasks)
        assert found.bound is not None and found.bound.max() < len(BOUNDS)
        for lane in found.lanes:
            assert (lane.start[1:] >= lane.end[:-1]).all()
            assert (lane.share is None) == (case != HOST)


# Single commands, in closed form.


def one(command: Command, device: Device, engine: str, chiplet: int = 0) -> Timing:
    program = Program(
        name="one", phase="decode", tokens=1, capacity=0, device=device.name, chiplets=4,
        queues=(Queue(chiplet, engine),), commands=(command,), groups=(0,), sizes={}, io={},
    )  # fmt: skip
    return simulate_program(program, device)


def copy(kind: str, x: str, y: str, nbytes: int) -> Command:
    sides = (Operand(r, Region(s, 0, 1, nbytes, nbytes), "packed") for r, s in (("x", x), ("y", y)))
    return Command(kind, 0, "layer", 0, tuple(sides), {"extent": "all"})


NS = 1000
TRANSFERS = [  # kind, from, to, engine, bytes per second of the narrowest, latency and set-up in ns
    ("weight_copy", "weights", "scratchpad.0", "neural_dma", 1.2e12, 200 + 150),
    ("copy", "shared.0", "shared.1", "task_dma", 1e12, 500 + 20 + 11),
    ("copy", "shared.0", "shared.3", "task_dma", 1e12, 500 + 20 + 22),  # two hops of the mesh
    ("copy", "shared.0", "shared.0", "task_dma", 4e12, 500 + 20),  # read and written: half of 8
    ("copy", "kv", "shared.0", "task_dma", 1.2e12, 500 + 150),
    ("host_copy", "io", "staging", "external_hdma", 63e9, 1000 + 1000 + 150),
]


@pytest.mark.parametrize(("kind", "x", "y", "engine", "rate", "fixed"), TRANSFERS)
def test_one_transfer(kind: str, x: str, y: str, engine: str, rate: float, fixed: int) -> None:
    nbytes = 1 << 20
    timing = one(copy(kind, x, y, nbytes), load_device("rebel100"), engine)
    expected = fixed * NS + -(-nbytes * 10**12 // int(rate))
    assert timing.duration == expected


def test_a_command_that_moves_too_much_is_refused() -> None:
    with pytest.raises(Unsupported, match="divide the model over more chiplets"):
        one(copy("copy", "kv", "shared.0", 5 * 10**9), load_device("rebel100"), "task_dma")


def test_a_memory_for_every_space() -> None:
    """An append then touches five; generated code and Python agree on what that takes."""
    names = ("io", "cos", "sin", "kv")
    text = device_text("host")
    for name in names:
        text = re.sub(rf"(?m)^{name} = .*\n", "", text)
        text = text.replace("[spaces]\n", f'[spaces]\n{name} = "of_{name}"\n')
        text += f'\n[memory.of_{name}]\nbandwidth = "10 GB/s"  # assumed\n'
    device = read_device(text, "host.toml")
    for program in plan(QWEN, weights="int8").programs:
        timing = simulate_program(program, device, Run(3, program.tokens), 2)
        np.testing.assert_array_equal(walk.walk(timing.tasks).end, timing.walk.end)
        if program.phase != "head":
            assert np.diff(timing.tasks.leg_first).max() == 5


def test_a_program_longer_than_times_can_tell_is_refused() -> None:
    device = overridden(load_device("rebel100"), {"memory.dram.bandwidth": "1 kB/s"})
    with pytest.raises(Unsupported, match=r"take 1e\+06 s one after the other"):
        simulate_program(
            Program(
                name="long", phase="decode", tokens=1, capacity=0, device=device.name, chiplets=4,
                queues=(Queue(0, "task_dma"),), groups=(0,), sizes={}, io={},
                commands=(copy("copy", "kv", "shared.0", 10**9),),
            ),
            device,
        )  # fmt: skip


def test_between_devices() -> None:
    device = replace(load_device("rebel100"), devices=2)
    timing = one(copy("device_copy", "shared.1", "shared.5", 1 << 20), device, "device_hdma", 1)
    assert timing.duration == (1000 + 2000 + 20) * NS + -(-(1 << 20) * 10**12 // 63 // 10**9)


@pytest.mark.parametrize(("rows", "bound"), [(1, "memory"), (224, "memory"), (257, "compute")])
def test_a_product_on_each_side_of_the_ridge(rows: int, bound: str) -> None:
    device = overridden(load_device("rebel100"), {"memory.scratchpad.bandwidth": "1 TB/s"})
    K, N = 2048, 1024
    sizes = {"x": ("shared.0", 2 * K, "bf16"), "w": ("scratchpad.0", 2 * K * N, "packed"),
             "y": ("shared.0", 4 * N, "f32")}  # fmt: skip
    operands = tuple(
        Operand(role, Region(space, 0, 1 if role == "w" else rows, width, width), dtype)
        for role, (space, width, dtype) in sizes.items()
    )
    attrs = {"K": K, "format": "bf16", "group": 0, "minimum": False, "T": max(rows, 16),
             "residual": False, "bias": False}  # fmt: skip
    command = Command("linear", 0, "layer", 0, operands, attrs)
    timing = one(command, device, "neural")
    tiles = -(-rows // 32) * 32  # whole tiles of 32 rows are computed
    compute = -(-2 * tiles * K * N * 10**12 // (256 * 10**12))
    memory = 2 * K * N  # bytes at a byte per ps
    assert timing.duration == (100 + 20) * NS + max(compute, memory)
    assert BOUNDS[timing.bound[0]] == bound and (compute > memory) == (bound == "compute")


def test_small_commands_are_bound_by_their_set_up() -> None:
    timing = one(copy("copy", "shared.0", "shared.1", 64), load_device("rebel100"), "task_dma")
    assert BOUNDS[timing.bound[0]] == "setup"


def test_measured_rates_go_before_peaks() -> None:
    points = [(1, 10**9), (4, 2 * 10**9)]
    assert interpolated(points, 1) == 1e9 and interpolated(points, 4) == pytest.approx(2e9)
    assert interpolated(points, 9) == 2e9
    # From 1 ns a row to 2 ns for four: 1.5 ns for two and a half.
    assert interpolated(points, 2) == pytest.approx(2 / (1 + 1 / 3) * 1e9)
    text = load_device("host").text.replace(
        "[memory.dram]",
        '[engine.core.rates]\n"linear int8g128 1" = "7 GOP/s"  # measured\n[memory.dram]',
    )
    from dielet.devices import read_device

    engine = read_device(text, "x").engine["core"]
    program = plan(QWEN, weights="int4").programs[-1]
    linear = next(c for c in program.commands if c.kind == "linear")
    cost = ENTRIES["linear"].cost(linear)
    (ops,) = cost.ops.values()
    assert Rates(engine).time(linear, cost, None, load_device("host")) == round(ops * 1000 / 7)


# Machines.


def test_routes_over_a_mesh() -> None:
    assert mesh_route(0, 3, 4) == [0, 1, 3]
    assert mesh_route(3, 0, 4) == [3, 2, 0]
    assert mesh_route(0, 7, 8) == [0, 1, 2, 3, 7]
    assert mesh_route(4, 1, 5) == [4, 3, 2, 1]
    assert mesh_route(2, 2, 4) == [2]


def test_two_sends_over_one_link_share_it() -> None:
    """On a mesh of four, 0 to 3 and 0 to 1 both leave 0 for 1."""
    machine = Machine(load_device("rebel100"))
    far, near = (machine.route(Place("shared", 0), Place("shared", c)) for c in (3, 1))
    assert set(near[0]) < set(far[0])
    assert far[1] == 2 * near[1] == 22_000


def test_equal_commands_are_priced_once() -> None:
    model = plan(QWEN, weights="bf16", device="rebel100")
    program = model.programs[0]
    costs = Costs(Machine(model.device), None)
    works = [costs.of(c, program.queues[c.queue], c.queue) for c in program.commands]
    assert len({id(work) for work in works}) < len(works) // 1.5
