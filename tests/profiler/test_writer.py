"""What is drawn of executions made up for the purpose, as Perfetto's own classes read it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dielet.devices import load_device
from dielet.profiler.host import HostSlice
from dielet.profiler.names import parse
from dielet.profiler.writer import TraceWriter, Written
from dielet.program.records import BOUNDS, Execution, Lane
from dielet.program.types import Command, Program, Queue
from tests.profiler.make import REBEL, linear, program, serial, sources
from tests.profiler.oracle import Slice, Trace, read

ENGINES = list(REBEL.engine)
FOUR = [Queue(chiplet, engine) for chiplet in range(4) for engine in ENGINES]


def written(
    folder: Path,
    executions: list[Execution],
    host: list[HostSlice] | None = None,
    **options: object,
) -> tuple[Written, list[Trace]]:
    """Write, and read back the merged trace and those of the executions."""
    chiplets = executions[0].program.chiplets
    count = 1 + max(e.instance for e in executions)
    given_sources = options.pop("sources", None) or sources(REBEL, chiplets, count)
    last = max(e.end for e in executions)
    commands = sum(len(lane.commands) for run in executions for lane in run.lanes)
    writer = TraceWriter(folder, "t", given_sources, last, {}, commands=commands, **options)  # type: ignore[arg-type]
    done = writer.write(executions, host or [])
    assert sorted(done.files) == sorted(folder.iterdir())
    return done, [read(path) for path in done.files]


def all_engines() -> Program:
    """One command on every engine of four chiplets."""
    return program(FOUR, [linear(queue, f"op.{queue % 7}") for queue in range(len(FOUR))])


def test_the_tree_of_four_chiplets(tmp_path: Path) -> None:
    _, (trace, single) = written(tmp_path, [serial(all_engines())])
    chiplet = [
        "    Neural Engine Clusters",
        "    Neural DMA",
        "    Task DMA",
        "    External HDMA",
        "    Device HDMA",
        "    Device Sync",
        "    General Compute Engine",
        "    DRAM bytes in use",
        "    shared-memory bytes in use",
        "    DRAM GB/s",
    ]
    expected = ["Device 0 (rebel100, modelled)", "  Device Workload"]
    for number in range(4):
        expected += [f"  Chiplet {number}", *chiplet]
    assert trace.tree() == single.tree() == expected


def test_empty_tracks_are_left_out(tmp_path: Path) -> None:
    queues = [Queue(0, "neural"), Queue(2, "task_dma")]
    _, (trace, _) = written(tmp_path, [serial(program(queues, [linear(1, "a"), linear(0, "b")]))])
    names = [line.strip() for line in trace.tree() if "bytes" not in line and "GB/s" not in line]
    assert names[1:] == [
        "Device Workload", "Chiplet 0", "Neural Engine Clusters", "Chiplet 2", "Task DMA",
    ]  # fmt: skip


def test_one_die_has_no_chiplet_groups(tmp_path: Path) -> None:
    atom = load_device("atom")
    one = program([Queue(0, "neural"), Queue(0, "task_dma")], [linear(1, "a"), linear(0, "b", [0])])
    _, (trace, _) = written(tmp_path, [serial(one)], sources=sources(atom, 1))
    assert [line for line in trace.tree() if "DRAM" not in line and "shared" not in line] == [
        "Device 0 (atom, modelled)",
        "  Device Workload",
        "  Neural Engine Clusters",
        "  Task DMA",
    ]


def test_several_devices_have_a_group_each(tmp_path: Path) -> None:
    four = load_device("atom-x4")
    queues = [Queue(chiplet, "neural") for chiplet in range(4)]
    commands = [linear(queue, "op") for queue in range(4)]
    _, (trace, _) = written(tmp_path, [serial(program(queues, commands))], sources=sources(four, 4))
    groups = [line.strip() for line in trace.tree() if line.startswith("  Device")]
    assert groups == [f"Device {n} (atom-x4, modelled)" for n in range(4)]
    for n in range(4):
        track = trace.track(f"dielet/Device {n} (atom-x4, modelled)/Neural Engine Clusters")
        assert len(track.slices) == 1
        assert (
            len(trace.track(f"dielet/Device {n} (atom-x4, modelled)/Device Workload").slices) == 1
        )


def test_names_workloads_and_files(tmp_path: Path) -> None:
    body = program([Queue(0, "neural")], [linear(0, "a"), linear(0, "b", [0]), linear(0, "a", [1])])
    head = program([Queue(0, "neural")], [linear(0, "model.lm_head")], phase="head")
    runs = []
    for n, (instance, sequence) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        at = n * 100_000_000
        runs.append(serial(body, instance, sequence, 0, at, past=5 * n, valid=1))
        if n:
            runs.append(serial(head, instance, sequence, 1, at + 50_000_000))
    done, (merged, *singles) = written(tmp_path, runs)
    assert [path.name for path in done.files] == ["t.pb", *(f"t_{n}.pb" for n in range(4))]
    assert (done.executions, done.commands) == (4, 15)
    workloads = merged.track("Device 0 (rebel100, modelled)/Device Workload").slices
    assert [piece.name for piece in workloads] == [
        "i0_0_Device Workload_0",
        "i0_1_Device Workload_0", "i0_1_Device Workload_1",
        "i1_0_Device Workload_0", "i1_0_Device Workload_1",
        "i1_1_Device Workload_0", "i1_1_Device Workload_1",
    ]  # fmt: skip
    assert workloads[5].args == {
        "phase": "decode", "program": "decode_1_kv64", "tokens": 1, "capacity": 64,
        "valid": 1, "past": 15,
    }  # fmt: skip
    assert [piece.name for piece in merged.commands()][-4:] == [
        "i1_1_W0_a_0", "i1_1_W0_b_0", "i1_1_W0_a_1", "i1_1_W1_model.lm_head_0",
    ]  # fmt: skip
    assert [piece.name for piece in singles[3].commands()] == [
        "1_W0_a_0", "1_W0_b_0", "1_W0_a_1", "1_W1_model.lm_head_0",
    ]  # fmt: skip
    for trace in (merged, *singles):  # each command lies within the run that its name says
        spans = {key(s): s for s in trace.slices if s.category == "Device Workload"}
        for piece in trace.commands():
            run = spans[key(piece)]
            assert run.start <= piece.start and piece.end <= run.end
    assert len(merged.commands()) == sum(len(single.commands()) for single in singles) == 15


def test_the_command_index_is_counted_per_chiplet(tmp_path: Path) -> None:
    queues = [Queue(0, "neural_dma"), Queue(0, "neural"), Queue(1, "neural")]
    commands = [linear(q, "op") for q in (0, 1, 2, 1, 2)]
    _, (trace, _) = written(tmp_path, [serial(program(queues, commands))])
    tracks = {trace.path(s.track).split("/", 1)[1]: [] for s in trace.commands()}
    for piece in trace.commands():
        tracks[trace.path(piece.track).split("/", 1)[1]].append(piece.name[-1])
    assert tracks == {
        "Chiplet 0/Neural DMA": ["0"],
        "Chiplet 0/Neural Engine Clusters": ["1", "2"],
        "Chiplet 1/Neural Engine Clusters": ["0", "1"],
    }


def test_every_slice_is_its_record(tmp_path: Path) -> None:
    of = all_engines()
    runs = [serial(of, 0, n, at=n * 10**9, length=1_234_567) for n in range(3)]
    _, (merged, *singles) = written(tmp_path, runs)
    for run, single in zip(runs, singles, strict=True):
        for lane in run.lanes:
            for command, start, end in zip(lane.commands, lane.start, lane.end, strict=True):
                queue = of.queues[of.commands[command].queue]
                title = REBEL.engine[queue.engine].title
                path = f"Device 0 (rebel100, modelled)/Chiplet {queue.chiplet}/{title}"
                (piece,) = single.track(path).slices
                assert (piece.start, piece.end) == (start // 1000, end // 1000)
                assert piece.category == title
    times = sorted((s.start, s.end) for single in singles for s in single.commands())
    assert times == sorted((s.start, s.end) for s in merged.commands())
    total = sum(int((lane.end - lane.start).sum()) for run in runs for lane in run.lanes)
    assert abs(sum(s.duration for s in merged.commands()) - total / 1000) <= len(times)


def test_arrows_are_the_dependencies(tmp_path: Path) -> None:
    queues = [Queue(0, "neural"), Queue(1, "neural"), Queue(0, "task_dma")]
    commands = [
        linear(0, "a"), linear(1, "b"), linear(0, "c", [0, 1]), linear(1, "d", [0, 1, 2]),
        linear(2, "e", [0, 1, 3]),
    ]  # fmt: skip
    done, (trace, _) = written(tmp_path, [serial(program(queues, commands))])
    arrows = sorted((a.name.split("_")[3], b.name.split("_")[3]) for a, b in trace.edges())
    assert arrows == [("a", "c"), ("a", "d"), ("a", "e"), ("b", "c"), ("b", "d"), ("b", "e"),
                      ("c", "d"), ("d", "e")]  # fmt: skip
    assert done.flows == 8


def test_neural_dma_has_no_arrows_and_hides_none(tmp_path: Path) -> None:
    queues = [Queue(0, "neural_dma"), Queue(0, "neural"), Queue(0, "external_hdma")]
    commands = [
        linear(2, "input"), linear(0, "w0"), linear(1, "x", [0, 1]), linear(0, "w1", [2]),
        linear(1, "y", [2, 3]),
    ]  # fmt: skip
    _, (trace, _) = written(tmp_path, [serial(program(queues, commands))])
    arrows = sorted((a.name.split("_")[3], b.name.split("_")[3]) for a, b in trace.edges())
    assert arrows == [("input", "x"), ("x", "y")]
    weights = [s for s in trace.commands() if s.category == "Neural DMA"]
    assert len(weights) == 2 and not any(s.flows for s in weights)
    waited = {s.name.split("_")[3]: s.args.get("waited for") for s in trace.commands()}
    assert waited["y"] == "w1_0 (chiplet 0)"
    assert waited["x"] == "input_0 (chiplet 0), w0_0 (chiplet 0)"


def test_input_and_output_run_through_one_transfer(tmp_path: Path) -> None:
    """External HDMA -> embedding at the head; several Task DMA -> one External HDMA at the end."""
    queues = [Queue(0, "external_hdma"), *(Queue(c, "task_dma") for c in range(4))]
    commands = [
        linear(0, "hidden_in"), linear(1, "model.model.embed_tokens", [0]),
        *(linear(1, f"gather.{n}", [1]) for n in range(3)),
        *(linear(1 + c, "part", [1]) for c in (1, 2, 3)),
        linear(0, "logits", [2, 3, 4]),
    ]  # fmt: skip
    _, (trace, _) = written(tmp_path, [serial(program(queues, commands))])
    by_category = [(a.category, b.category, b.name) for a, b in trace.edges()]
    assert ("External HDMA", "Task DMA", "i0_0_W0_model.model.embed_tokens_0") in by_category
    into = [a for a, b in trace.edges() if "logits" in b.name]
    assert len(into) == 3 and {a.category for a in into} == {"Task DMA"}
    ends = {trace.path(s.track).split("/")[1]: s.end for s in trace.commands()}
    assert ends["Chiplet 0"] > max(ends[f"Chiplet {n}"] for n in (1, 2, 3))


def test_arguments(tmp_path: Path) -> None:
    """2 x 32 x 64 operations and 4416 bytes in 2 us, by hand."""
    of = program([Queue(0, "neural")], [linear(0, "a"), linear(0, "b", [0])])
    run = serial(of, length=2_000_000, gap=0)
    _, (trace, _) = written(tmp_path, [run])
    assert trace.commands()[0].args == {
        "kind": "linear",
        "shape": "1x32 . 32x64",
        "format": "bf16",
        "memory": "shared, dram -> shared",
        "bytes": 64 + 4096 + 256,
        "MB/s": 2208,
        "operations": 2 * 32 * 64,
        "GOP/s": 2,
        "% of peak": 0,  # 2.05 GB/s of 1200, 2 GOP/s of 256000
        "bound by": "setup",
    }


def test_given_bounds_are_shown(tmp_path: Path) -> None:
    of = program([Queue(0, "neural")], [linear(0, name) for name in BOUNDS])
    run = serial(of)
    bound = np.arange(len(BOUNDS), dtype=np.uint8)
    given = Execution(of, "modelled", 0, 0, 0, 0, 1, run.lanes, bound)
    unknown = sources(REBEL, 1, peaks=False)
    _, (trace, _) = written(tmp_path, [given], sources=unknown)
    assert [s.args["bound by"] for s in trace.commands()] == list(BOUNDS)
    assert all("% of peak" not in s.args for s in trace.commands())


def test_waits_are_gaps_with_their_causes(tmp_path: Path) -> None:
    of = program([Queue(0, "neural"), Queue(1, "neural")], [linear(0, "a"), linear(1, "b", [0])])
    lanes = (
        Lane("0", np.array([0], np.int32), np.array([1_000_000]), np.array([5_000_000])),
        Lane("1", np.array([1], np.int32), np.array([7_000_000]), np.array([8_000_000])),
    )
    _, (trace, _) = written(tmp_path, [Execution(of, "modelled", 0, 0, 0, 0, 1, lanes)])
    a, b = trace.commands()
    assert "waited for" not in a.args
    assert b.args["waited for"] == "a_0 (chiplet 0)"
    assert b.args["waited ns"] == 6000  # from the start of the run


def test_a_divided_command_is_drawn_on_tracks_of_its_own(tmp_path: Path) -> None:
    """Two workers on one chiplet: the second one's slices would overlap the first one's."""
    host = load_device("host")
    of = program([Queue(0, "core")], [linear(0, "a"), linear(0, "b", [0])], "host")
    both = np.array([0, 1], np.int32)
    lanes = (
        Lane("worker 0", both, np.array([0, 30]) * 1000, np.array([20, 60]) * 1000,
             np.array([0.25, 0.5])),
        Lane("worker 1", both, np.array([5, 40]) * 1000, np.array([25, 70]) * 1000,
             np.array([0.75, 0.5])),
    )  # fmt: skip
    run = Execution(of, "measured", 0, 0, 0, 0, 1, lanes)
    done, (trace, _) = written(tmp_path, [run], sources=sources(host, 1, clock="measured"))
    assert done.commands == 4
    assert trace.tree()[:4] == [
        "Device 0 (host, measured)", "  Device Workload", "  Cores", "    worker 1",
    ]  # fmt: skip
    pieces = trace.track("Device 0 (host, measured)/Cores/worker 1").slices
    assert [s.args["bytes"] for s in pieces] == [4416 * 3 // 4, 4416 // 2]
    assert {s.args["worker"] for s in pieces} == {1}
    bare = trace.track("Device 0 (host, measured)/Cores").slices
    assert [s.args["worker"] for s in bare] == [0, 0]
    assert {s.category for s in trace.commands()} == {"Cores"}
    assert len(trace.edges()) == 1
    assert all("waited for" in s.args for s in trace.commands() if "_b_" in s.name)


def test_host_work_is_on_its_track_without_a_workload(tmp_path: Path) -> None:
    of = program([Queue(0, "neural")], [linear(0, "a")])
    runs = [serial(of, 1, n, at=(10 + 10 * n) * 1_000_000) for n in range(2)]
    host = [
        HostSlice("tokenize", 1_000_000, 2_000_000, 1, 0),
        HostSlice("model.model.embed_tokens", 3_000_000, 4_000_000, 1, 0),
        HostSlice("sample", 14_000_000, 15_000_000, 1, 0),
        HostSlice("sample", 15_000_000, 16_000_000, 1, 0),
        HostSlice("sample", 24_000_000, 25_000_000, 1, 1, thread=1),
    ]
    _, (merged, first, second) = written(tmp_path, runs, host)
    device = "Device 0 (rebel100, modelled)"
    assert [s.name for s in merged.track(f"{device}/Host").slices] == [
        "i1_0_tokenize_0", "i1_0_model.model.embed_tokens_0", "i1_0_sample_0", "i1_0_sample_1",
    ]  # fmt: skip
    assert [s.name for s in merged.track(f"{device}/Host/thread 1").slices] == ["i1_1_sample_0"]
    assert len(first.slices) == 2 + 4 and len(second.slices) == 2 + 1
    assert merged.tree()[1:3] == ["  Device Workload", "  Host"]


def test_counters(tmp_path: Path) -> None:
    of = program([Queue(0, "neural"), Queue(1, "neural")], [linear(0, "a"), linear(1, "b", [0])])
    length = 8_000_000
    run = serial(of, length=length, gap=0, past=3)
    _, (trace, _) = written(tmp_path, [run])
    chiplet = "Device 0 (rebel100, modelled)/Chiplet 1"
    rate = trace.track(f"{chiplet}/DRAM GB/s").samples
    seen = [value for _, value in rate]
    # 4096 bytes of weights in 8 us, in the second half of the time
    assert seen[:4] == [0] * 4 and seen[-1] == 0
    assert seen[4:8] == pytest.approx([4096 / 8e-6 / 1e9] * 4)
    area = sum(v * (b - a) for (a, v), (b, _) in pairwise(rate))
    assert area == pytest.approx(4096)
    in_use = trace.track(f"{chiplet}/DRAM bytes in use").samples
    assert [value for _, value in in_use] == [4096]
    assert trace.tracks[trace.slices[0].track].unit == ""


def test_counters_are_0_between_a_decoder_and_its_head(tmp_path: Path) -> None:
    """Nothing moves while the host has the hidden states, however long it takes."""
    body = program([Queue(0, "neural")], [linear(0, f"op.{n}") for n in range(400)])
    head = program([Queue(0, "neural")], [linear(0, "model.lm_head")], phase="head")
    runs = []
    for n in range(2):
        at = n * 10**10
        first = serial(body, 0, n, at=at, length=8_000_000, gap=0)
        runs += [first, serial(head, 0, n, 1, at=first.end + 1_000_000_000, length=8_000_000)]
    _, (merged, single, _) = written(tmp_path, runs)
    for trace, mine in ((merged, runs), (single, runs[:2])):
        for name in ("DRAM GB/s", "shared-memory bytes in use"):
            samples = trace.track(f"Device 0 (rebel100, modelled)/{name}").samples
            spans = [(run.start // 1000, run.end // 1000) for run in mine]
            for (at, value), (until, _) in pairwise(samples):
                assert value == 0 or any(a <= at and until <= b for a, b in spans)
            for start, end in spans:
                assert [time for time, _ in samples if time in (start, end)] == [start, end]
        rate = trace.track("Device 0 (rebel100, modelled)/DRAM GB/s").samples
        for run, (start, end) in zip(mine, spans, strict=True):
            moved = sum(v * (b - a) for (a, v), (b, _) in pairwise(rate) if start <= a < end)
            assert moved == pytest.approx(4096 * len(run.program.commands))


@pytest.mark.parametrize("first", [0, 7, 95, 998])
def test_numbers_may_grow_by_a_digit(tmp_path: Path, first: int) -> None:
    of = program([Queue(0, "neural")], [linear(0, "a")])
    runs = [serial(of, 3, first + n, at=n * 10_000_000) for n in range(8)]
    _, (merged, *singles) = written(tmp_path, runs)
    assert [s.name for s in merged.commands()] == [f"i3_{first + n}_W0_a_0" for n in range(8)]
    assert [s.commands()[0].name for s in singles] == [f"{first + n}_W0_a_0" for n in range(8)]


def test_compressed_packets_hold_the_same(tmp_path: Path) -> None:
    of = program(FOUR, [linear(n % len(FOUR), f"op.{n}", [n - 1] if n else []) for n in range(900)])
    runs = [serial(of, 0, n, at=n * 10**10) for n in range(3)]
    folders = [tmp_path / "plain", tmp_path / "small"]
    for folder in folders:
        folder.mkdir()
    plain, traces = written(folders[0], runs)
    small, same = written(folders[1], runs, compress=True)
    assert traces == same
    assert plain.nbytes == small.nbytes
    for a, b in zip(plain.files, small.files, strict=True):
        assert b.stat().st_size < a.stat().st_size / 3


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_schedule_is_drawn_as_it_is(tmp_path: Path, data: st.DataObject) -> None:
    """Random programs and times, zero lengths and touching slices among them."""
    queues = FOUR[: data.draw(st.integers(1, 6))]
    commands: list[Command] = []
    for number in range(data.draw(st.integers(1, 25))):
        deps = data.draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else set()
        queue = data.draw(st.integers(0, len(queues) - 1))
        commands.append(linear(queue, str(number), sorted(deps)))
    of = program(queues, commands)
    steps = []
    at = 0
    for sequence in range(data.draw(st.integers(1, 3))):
        free = [at] * len(queues)
        ends: list[int] = []
        spans: list[list[tuple[int, int, int]]] = [[] for _ in queues]
        for number, command in enumerate(commands):
            start = max([free[command.queue], *(ends[d] for d in command.deps)])
            start += data.draw(st.sampled_from([0, 0, 300, 1500, 10**6]))
            ends.append(start + data.draw(st.sampled_from([0, 400, 1000, 123_456])))
            free[command.queue] = ends[-1]
            spans[command.queue].append((number, start, ends[-1]))
        at = max(ends) + 1000
        lanes = [
            Lane(str(n), np.array(c, np.int32), np.array(s, np.int64), np.array(e, np.int64))
            for n, mine in enumerate(spans)
            for c, s, e in [zip(*mine, strict=True) if mine else ([], [], [])]
        ]
        steps.append(Execution(of, "modelled", 0, sequence, 0, 0, 1, tuple(lanes)))
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    done, (merged, *singles) = written(folder, steps)
    records = sorted(
        (int(s) // 1000, int(e) // 1000)
        for step in steps for lane in step.lanes
        for s, e in zip(lane.start, lane.end, strict=True)
    )  # fmt: skip
    assert sorted((s.start, s.end) for s in merged.commands()) == records
    assert done.flows == len(merged.edges()) == sum(len(s.edges()) for s in singles)
    dma = ENGINES.index("neural_dma")
    expected = sorted(
        (dep, number)
        for number, command in enumerate(commands)
        for dep in command.deps
        if dma not in (command.queue, commands[dep].queue)
    )
    for single in singles:
        names = [(parse(a.name), parse(b.name)) for a, b in single.edges()]
        assert sorted((int(a.layer or ""), int(b.layer or "")) for a, b in names) == expected


def key(piece: Slice) -> tuple[int | None, int, int | None]:
    """The run that a slice belongs to."""
    name = parse(piece.name)
    assert name is not None
    return name.instance, name.sequence, name.workload
