"""What traces may look like: names, tracks, workers, losses, and what is refused."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from dielet.analysis import analyze
from dielet.analysis.names import group_of, layer_of
from dielet.analysis.open import open_table
from dielet.errors import DamagedFile, MissingFile, UsageError
from tests.analysis.make import DEVICE, HOST, NEURAL, TASK, WORKLOAD, Maker, answers, engine, toy


def notes(path: Path) -> str:
    return "\n".join(note.text for note in analyze(path).coverage.notes)


def test_a_whole_trace_has_nothing_to_say(tmp_path: Path) -> None:
    coverage = analyze(toy().write(tmp_path / "a.pb")).coverage
    assert coverage.commands == 8 and coverage.steps == 2
    assert coverage.dropped_commands == 0 and coverage.resolved_waits == 1
    # Two arrows and two causes in words, each seen once.
    assert coverage.dependencies == 4 and coverage.arguments == 1
    assert [n.text for n in coverage.notes] == [
        "no counters: bytes are those of the commands, memory in use is not known"
    ]
    assert coverage.lacks == (coverage.notes[0].text,) and not coverage.complete
    trace = toy()
    trace.counter((DEVICE, "Chiplet 0", "DRAM bytes in use"), "bytes", {0: 1.0})
    counted = analyze(trace.write(tmp_path / "b.pb")).coverage
    assert counted.complete and not counted.notes


def test_layers_and_groups_of_operations() -> None:
    name = "fused(model.model.layers.12.mlp.down_proj+model.model.layers.12.mlp.add)"
    assert layer_of(name) == 12 and layer_of("model.lm_head") == -1
    assert (
        group_of(name) == "fused(model.model.layers.*.mlp.down_proj+model.model.layers.*.mlp.add)"
    )


def test_old_names_without_arguments(tmp_path: Path) -> None:
    t = Maker()
    for chiplet in (0, 1):
        t.slice(engine(chiplet, NEURAL), "12_linear_196_0", 0, 100 + 20 * chiplet)
    t.slice(engine(0, TASK), "12_linear_196_1", 130, 150)
    t.slice(engine(0, TASK), "13_linear_196_0", 200, 210)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert [(s.sequence, s.phase, s.duration_ns) for s in found.steps] == [
        (12, "all runs", 150), (13, "all runs", 10),
    ]  # fmt: skip
    rows = {(o.operation, o.engine): (o.commands, o.time_ns, o.share) for o in found.operations}
    assert rows["linear_196", NEURAL] == (2, 220, None)
    assert found.speed.ttft_ns is None and found.speed.dram_bytes_per_token is None
    text = "\n".join(note.text for note in found.coverage.notes)
    assert "do not say the run" in text and "do not say their phase" in text
    assert "no dependencies" in text and "4 of 4 commands do not say their bytes" in text
    assert found.coverage.dropped_commands is None
    # The order of the engines is all that is known: the copy was bound by nothing in the trace.
    parts = {p.name: p.total_ns for p in found.path_parts if p.by == "engine"}
    assert parts == {TASK: 30, "(waiting)": 130}


def test_one_die_and_no_category(tmp_path: Path) -> None:
    t = Maker()
    t.slice((DEVICE, TASK), "i3_0_W0_a_0", 0, 10)
    t.slice((DEVICE, "Some Engine"), "i3_0_W0_b_0", 10, 30)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert {(e.chiplet, e.engine, e.kind) for e in found.engines} == {
        (None, TASK, "dma"), (None, "Some Engine", "compute"),
    }  # fmt: skip
    assert found.steps[0].phase == "instance 3"


def test_runs_of_one_kind_are_kept_together(tmp_path: Path) -> None:
    table = open_table(answers([10, 20, 30]).write(tmp_path / "a.pb"))
    shapes = {kind.phase: kind.start.shape for kind in table.kinds}
    assert shapes == {"prefill": (1, 1), "decode": (3, 1)}
    assert [kind.duration.ravel().tolist() for kind in table.kinds] == [[100], [10, 20, 30]]


def test_a_run_that_repeats_a_name(tmp_path: Path) -> None:
    t = Maker()
    for n in range(3):
        t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 10 * n, 10 * n + 5)
    t.slice(engine(0, NEURAL), "i0_1_W0_a_0", 100, 105)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert found.operations[0].commands == 4
    assert [s.duration_ns for s in found.steps] == [25, 5]


def test_workers_are_found_where_tracks_are_chiplets(tmp_path: Path) -> None:
    t = Maker(device_clock="measured", dielet_version="0")
    cores = {n: (DEVICE, f"Chiplet {n}", "Cores") for n in range(3)}
    for step in range(2):
        at = 100 * step
        name = f"i1_{step}_W0_"
        t.slice(cores[0], f"{name}a_0", at, at + 20)
        t.slice((*cores[0], "worker 1"), f"{name}a_0", at, at + 25)
        t.slice(cores[1], f"{name}b_0", at + 20, at + 40)  # beside chiplet 2's: another worker
        t.slice(cores[2], f"{name}b_0", at + 25, at + 45)
    found = analyze(t.write(tmp_path / "a.pb"))
    run = {e.engine: (e.chiplet, e.busy_ns) for e in found.engines if e.scope == "run"}
    # worker 1 did a's second part and, as it did not overlap, one of the b's.
    assert sum(busy for _, busy in run.values()) == 2 * (20 + 25 + 20 + 20)
    assert {name: chiplet for name, (chiplet, _) in run.items()} == {
        "worker 0": None, "worker 1": None,
    }  # fmt: skip
    assert sorted(busy for _, busy in run.values()) == [80, 90]


def test_parts_of_a_command_depend_on_all_parts_of_another(tmp_path: Path) -> None:
    t = Maker(device_clock="measured", dielet_version="0")
    core = (DEVICE, "Chiplet 0", "Cores")
    other = (*core, "worker 1")
    arrow = t.flow()
    t.slice(core, "i0_0_W0_a_0", 0, 10)
    t.slice(other, "i0_0_W0_a_0", 0, 30, (arrow,))
    t.slice(core, "i0_0_W0_b_0", 31, 40, (arrow,))
    t.slice(other, "i0_0_W0_b_0", 31, 50)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert found.coverage.dependencies == 4
    lost = {(c.cause, c.engine): c.lost_ns for c in found.gap_causes}
    assert lost == {
        ("dependency", "worker 0"): 20, ("imbalance", "worker 0"): 10,
        ("delay", "worker 0"): 1, ("delay", "worker 1"): 1,
    }  # fmt: skip


def test_losses_are_warnings(tmp_path: Path) -> None:
    t = toy()
    t._attributes["dropped_command_count"] = 7
    t.slice(engine(0, NEURAL), "i1_0_W1_late_0", 1000, None)
    path = t.write(tmp_path / "a.pb")
    coverage = analyze(path).coverage
    assert "1 slice has no end and is left out" in notes(path)
    assert not coverage.complete
    assert coverage.dropped_commands == 7 and coverage.open_slices == 1
    assert [n.severity for n in coverage.notes] == ["warning", "warning", "note"]
    assert "7 commands were dropped" in coverage.notes[0].text


def test_a_cut_off_end_is_said(tmp_path: Path) -> None:
    path = toy().write(tmp_path / "a.pb")
    path.write_bytes(path.read_bytes()[:-150])
    coverage = analyze(path).coverage
    assert coverage.truncated and not coverage.complete
    assert "cut off" in coverage.notes[0].text


@pytest.mark.parametrize("host", [0, 10])
def test_what_a_cut_leaves_of_a_step_is_left_out(tmp_path: Path, host: int) -> None:
    """Ten steps of two commands of 40 bytes each; the cut is within the eighth's."""

    def trace(name: str, steps: int, last: int) -> Path:
        t = Maker(device_clock="modelled", dropped_command_count=0)
        for n in range(steps):
            at = 110 * n
            step = f"i1_{n - 1}" if n else "i0_0"
            t.slice((DEVICE, HOST), f"{step}_work_0", at, at + host)
            t.slice((DEVICE, WORKLOAD), f"{step}_Device Workload_0", at + 10, at + 110,
                    phase="decode" if n else "prefill", program="decode" if n else "prefill",
                    past=n)  # fmt: skip
            for k in range(2 if n < steps - 1 else last):
                t.slice(engine(0, NEURAL), f"{step}_W0_a_{k}", at + 10 + 50 * k, at + 60 + 50 * k,
                        bytes=40)  # fmt: skip
        return t.write(tmp_path / name)

    whole = analyze(trace("whole.pb", 7, 2))
    for last in (1, 0):
        # Without any command of the eighth the seventh is the last that has some, and whole.
        cut = trace(f"{last}.pb", 8, last)
        cut.write_bytes(cut.read_bytes() + b"\x0a\x7f")  # a packet of which nothing follows
        found = analyze(cut)
        assert found.coverage.truncated and not found.coverage.complete
        assert found.speed == whole.speed and found.speed.bytes_per_token == 80
        assert found.phases == whole.phases and found.steps == whole.steps
        assert "1 step at the cut, perhaps not whole, is left out" in found.coverage.notes[0].text
    kept = trace("kept.pb", 7, 2)
    kept.write_bytes(kept.read_bytes() + b"\x0a\x7f")
    assert analyze(kept).steps == whole.steps  # its commands are those of the steps before
    alone = trace("alone.pb", 1, 1)
    alone.write_bytes(alone.read_bytes() + b"\x0a\x7f")
    assert "its only step is perhaps not whole" in analyze(alone).coverage.notes[0].text


def test_missing_chiplets_are_said(tmp_path: Path) -> None:
    t = Maker(peaks_of_each="chiplet", peaks_count=4)
    for chiplet in (0, 2):
        t.slice(engine(chiplet, NEURAL), "i0_0_W0_a_0", 0, 10)
    assert "no commands on chiplets 1, 3" in notes(t.write(tmp_path / "a.pb"))


def test_peaks_that_are_exceeded_are_said(tmp_path: Path) -> None:
    t = Maker()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 10, percent=120, bytes=1)
    assert "exceed the peaks in 100%" in notes(t.write(tmp_path / "a.pb"))


def test_foreign_slices_are_counted(tmp_path: Path) -> None:
    t = toy()
    t.slice(engine(0, NEURAL), "something else", 2000, 2010)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert found.coverage.unnamed_slices == 1 and found.coverage.commands == 8


def test_a_window(tmp_path: Path) -> None:
    path = answers([100] * 5, command_count=6).write(tmp_path / "a.pb")
    found = analyze(path, window_ms=(100e-6, 340e-6))
    # The step from 340 on is not whole, and what the host does for it is not of the window.
    assert [step.start_ns for step in found.steps] == [120, 230]
    assert [step.token_ns for step in found.steps] == [None, 110]
    cover = found.coverage
    assert cover.window_ns == (110, 330)
    assert all(note.severity == "note" for note in cover.notes)
    assert (cover.steps, cover.commands, cover.host_slices, cover.slices) == (2, 2, 2, 6)
    with pytest.raises(
        UsageError, match=r"no step is whole between 5 and 6 ms; the trace has 0.00"
    ):
        analyze(path, window_ms=(5, 6))


def test_old_names_make_one_run_of_a_step(tmp_path: Path) -> None:
    """The step's slices on `Device Workload` are of the one run that its commands are of."""
    t = Maker()
    for n, (start, end) in enumerate([(100, 300), (310, 400)]):
        t.slice((DEVICE, WORKLOAD), f"7_Device Workload_{n}", start, end)
    t.slice(engine(0, NEURAL), "7_a_0", 100, 290)
    t.slice(engine(0, NEURAL), "7_lm_head_0", 310, 390)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert [(p.name, p.runs, p.total_ns, p.share) for p in found.phases] == [
        ("all runs", 1, 300, 1)
    ]
    assert [(e.scope, e.busy_ns) for e in found.engines] == [("run", 270), ("all runs", 270)]
    # Without dependencies nobody knows what was waited for.
    assert not any("nothing on the critical path" in f.title for f in found.findings)


def test_counters_are_those_of_the_window(tmp_path: Path) -> None:
    """Decode from 500 to 1000 ns: what is in use then, and what the link carried until then."""
    t = toy()
    chiplet = (DEVICE, "Chiplet 0")
    t.counter((*chiplet, "DRAM bytes in use"), "bytes", {0: 900.0, 200: 100.0, 600: 150.0})
    t.counter((*chiplet, "DRAM GB/s"), "GB/s", {0: 9.0, 450: 2.0, 1100: 0.0})
    found = analyze(t.write(tmp_path / "a.pb"), window_ms=(400e-6, 1e-3))
    assert found.coverage.window_ns == (400, 1000) and found.coverage.commands == 7
    assert found.memory.peaks == {"DRAM": 150} and found.memory.peak_ns == {"DRAM": 600}
    lines = {line.name: line for line in found.counters}
    assert lines["DRAM bytes in use"].times_ns == (400, 600)
    assert lines["DRAM bytes in use"].values == (100.0, 150.0)
    # 2 bytes per ns, 400 ns of decode and 80 of its head.
    assert found.speed.dram_bytes_per_token == pytest.approx(960)
    note = next(note.text for note in found.coverage.notes if "in the window" in note.text)
    assert note.startswith("of 8 commands in the trace 7 are in the window")
    assert found.coverage.resolved_waits == 1


def test_a_window_keeps_whole_steps(tmp_path: Path) -> None:
    path = toy().write(tmp_path / "a.pb")
    # The decode step is from 500 to 1000, its head from 920 on.
    found = analyze(path, window_ms=(0, 950e-6))
    assert [(s.phase, s.duration_ns) for s in found.steps] == [("prefill", 300)]
    assert found.coverage.commands == 1 and found.coverage.dependencies == 0
    assert [step.phase for step in analyze(path, window_ms=(450e-6, 2e-3)).steps] == ["decode"]
    assert analyze(path, window_ms=(0, 2e-3)).speed.ttft_ns == 400
    assert analyze(path, window_ms=(10e-6, 2e-3)).speed.ttft_ns is None  # `tokens` began before


def test_after_drops_the_window_begins_at_the_first_run(tmp_path: Path) -> None:
    t = toy()
    t._attributes["dropped_command_count"] = 7
    for n in range(5):
        t.slice((DEVICE, HOST), f"i2_{n}_sample_0", 10 * n + 50, 10 * n + 60)
    path = t.write(tmp_path / "a.pb")
    found = analyze(path)
    assert found.coverage.window_ns == (100, 1000) and found.coverage.host_slices == 1
    host = next(phase for phase in found.phases if phase.name == "host")
    assert host.total_ns == 100 + 20 and found.speed.ttft_ns is None


@pytest.mark.parametrize(
    "name",
    [
        "i0_{}_W0_b_0", "i{}_0_W0_b_0", "i0_0_W{}_b_0", "i0_0_W0_b_{}", "i0_0_W0_x.{}.b_0",
        "i0_{}_Device Workload_0", "i0_0_Device Workload_{}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", ["99999999999999999999", "999999999", "9" * 5000])
def test_numbers_of_any_length(tmp_path: Path, name: str, number: str) -> None:
    t = toy()
    place = (DEVICE, "Device Workload") if "Workload" in name else engine(0, NEURAL)
    t.slice(place, name.format(number), 1000, 1010)
    coverage = analyze(t.write(tmp_path / "a.pb")).coverage
    assert coverage.unnamed_slices + coverage.commands + coverage.steps >= 8 + 2


@pytest.mark.parametrize("duration", [(1 << 63) - 2, 1 << 55])
def test_times_that_cannot_be(tmp_path: Path, duration: int) -> None:
    t = toy()
    t.slice(engine(0, NEURAL), "i1_0_W1_late_0", 1, duration)
    with pytest.raises(DamagedFile, match=r"damaged.*'i1_0_W1_late_0', takes"):
        analyze(t.write(tmp_path / "a.pb"))


def test_an_end_before_its_beginning(tmp_path: Path) -> None:
    t = toy()
    t.slice(engine(0, NEURAL), "i1_0_W1_late_0", 1200, None)
    path = t.write(tmp_path / "a.pb")
    end = pb.TracePacket(timestamp=1100, trusted_packet_sequence_id=1)
    end.track_event.type, end.track_event.track_uuid = 2, t.track(*engine(0, NEURAL))
    trace = pb.Trace(packet=[end])
    path.write_bytes(path.read_bytes() + trace.SerializeToString())
    with pytest.raises(DamagedFile, match="begins at 1200 ns and ends at 1100 ns, before it begin"):
        analyze(path)


def test_attributes_that_must_be_numbers(tmp_path: Path) -> None:
    t = toy()
    t._attributes["dropped_command_count"] = "many"
    with pytest.raises(DamagedFile, match="dropped_command_count is 'many', not a number"):
        analyze(t.write(tmp_path / "a.pb"))


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    with pytest.raises(MissingFile, match="does not exist"):
        analyze(path)
    for what, words in ((tmp_path, "is a directory"), (Path("/dev/null"), "is a device")):
        with pytest.raises(DamagedFile, match=rf"{words}, not a file; give a trace, such as"):
            analyze(what)
    os.mkfifo(tmp_path / "pipe")
    for name in ({"diff": tmp_path / "pipe"}, {"budget": tmp_path / "pipe"}):
        good = toy().write(tmp_path / "good.pb")
        with pytest.raises(DamagedFile, match=r"pipe is a pipe, not a file; give a"):
            analyze(good, **name)  # type: ignore[arg-type]
    path.write_bytes(gzip.compress(good.read_bytes()))
    with pytest.raises(DamagedFile, match=r"compressed with gzip; unpack it with `gunzip`"):
        analyze(path)
    path.write_bytes(b"no trace at all")
    with pytest.raises(DamagedFile, match=r"not a Perfetto trace.*; copy it again, profile again"):
        analyze(path)
    path.write_bytes(b"")
    with pytest.raises(DamagedFile, match="is empty"):
        analyze(path)
    path.write_text('{"traceEvents": []}')
    with pytest.raises(DamagedFile, match=r"JSON, perhaps a Chrome trace.*; give a trace"):
        analyze(path)
    Maker(a=1).write(path)
    with pytest.raises(DamagedFile, match="without a single slice"):
        analyze(path)
    t = Maker()
    t.slice(("Process", "thread"), "malloc", 0, 10)
    t.write(path)
    with pytest.raises(DamagedFile, match=r"no slice of 1 .* is called like .*'malloc'"):
        analyze(path)
