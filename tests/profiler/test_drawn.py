"""What is drawn of a real model: its commands, their times, what they moved and computed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dielet
from dielet.generate.session import Model
from dielet.profiler.names import parse
from dielet.profiler.plan import Facts
from dielet.profiler.session import Session
from tests.profiler.arrows import check_arrows
from tests.profiler.oracle import read
from tests.profiler.talking import programs_of, talking


def test_counts_names_arrows_and_attributes(model: Model, tmp_path: Path) -> None:
    with Session(tmp_path) as session:
        model.generate("a b c", max_new_tokens=5, temperature=0)
    trace = read(session.files[0])
    found = session.summary()
    programs = {name: model.runtime.files.program(name) for name in programs_of(trace)}
    pieces = {name: sum(map(len, model.runtime._tables(name).pieces)) for name in programs}
    runs = programs_of(trace)
    assert sum(runs[name] * pieces[name] for name in runs) == len(trace.commands())
    assert len(trace.commands()) == found.commands == trace.attributes["command_count"]
    assert check_arrows(trace, programs) == found.flows > 0
    decoders = [s for s in trace.slices if s.name.endswith("Device Workload_0")]
    assert found.executions == trace.attributes["execution_count"] == len(decoders)
    assert found.dropped == trace.attributes["dropped_command_count"] == 0
    assert found.host_slices == sum(s.category == "Host" for s in trace.slices)
    assert trace.attributes["device"] == "host"
    assert trace.attributes["device_clock"] == "measured"
    assert trace.attributes["dielet_version"] == dielet.__version__
    assert len(trace.attributes["device_sha256"]) == 64
    wall = trace.attributes["run_ns"]
    assert 0 < wall <= trace.attributes["run_and_write_ns"]
    layers = {(parse(s.name) or pytest.fail()).layer for s in trace.commands()}
    assert layers == {c.layer for program in programs.values() for c in program.commands}
    for a, b in trace.edges():
        assert a.end <= b.start, "nothing starts before what it depends on has ended"
    first, last = trace.commands()[0].start, max(s.end for s in trace.commands())
    assert first > 0 and last <= wall


def test_times_are_those_of_the_stamps(model: Model, tmp_path: Path) -> None:
    """The last execution's stamps are still in the runtime's tables."""
    with Session(tmp_path) as session:
        model.generate("hi", max_new_tokens=3, temperature=0)
        name = model.runtime._programs["decode_1_kv64"].program.name
        stamps = [part.copy() for part in model.runtime._tables(name).stamps]
    trace = read(session.files[-1])
    slices = sorted((s.start, s.duration) for s in trace.commands() if "_W0_" in s.name)
    ticks = np.concatenate(stamps)
    order = np.argsort(ticks[:, 0], kind="stable")
    durations = (ticks[:, 1] - ticks[:, 0])[order]
    measured = np.array([duration for _, duration in slices])
    rate = measured.sum() / durations.sum()
    assert 0.05 < rate < 20  # ns per tick
    np.testing.assert_allclose(np.sort(measured), np.sort(durations) * rate, atol=2)


@pytest.mark.parametrize(("chiplets", "threads"), [(1, 1), (1, 2), (3, 2), (4, 2), (2, 3)])
def test_any_number_of_chiplets_on_any_number_of_workers(
    tmp_path: Path, chiplets: int, threads: int
) -> None:
    """Slices never overlap on a track, and the parts of a command add up to it."""
    folder = talking(tmp_path / "m", chiplets=chiplets, weights="int8")
    with dielet.load(folder, threads=threads) as loaded, Session(tmp_path / "out") as session:
        loaded.generate("hi", max_new_tokens=3, temperature=0)
    trace = read(session.files[-1])
    groups = {line.strip() for line in trace.tree() if "Chiplet" in line}
    assert groups == ({f"Chiplet {n}" for n in range(chiplets)} if chiplets > 1 else set())
    program = loaded.runtime.files.program("decode_1_kv64")
    names = Counter(s.name for s in trace.commands() if "_W0_" in s.name)
    layers = Counter(c.layer for c in program.commands)
    for name, count in names.items():
        layer = (parse(name) or pytest.fail()).layer
        assert layers[layer] <= count <= layers[layer] * max(threads, 1)
    check_arrows(trace, {n: loaded.runtime.files.program(n) for n in programs_of(trace)})


def test_facts_are_those_of_the_program(model: Model) -> None:
    """What commands move and compute, for the 64-wide tiny model, by hand."""
    from dielet.devices import load_device
    from dielet.profiler.tracks import Place

    program = model.runtime.files.program("decode_1_kv64")
    place = Place(load_device("host"), "measured", 2)
    facts = Facts.of(program, place, None)
    terms = facts.work.terms(np.array([1.0]), np.array([9.0]))
    dram = facts.work.memories.index("dram")
    moved = terms @ facts.work.moved[:, :, dram]
    ops = terms @ facts.work.ops
    kinds = [c.kind for c in program.commands]
    attention = kinds.index("attention")
    heads, D = 1, 32  # of this chiplet: one of two KV heads, with two query heads
    assert moved[0, attention] == 2 * 10 * heads * D * 2  # K and V, 10 positions, bf16
    assert ops[0, attention] == 4 * 10 * 2 * D
    linear = kinds.index("linear")
    assert ops[0, linear] == 2 * 64 * 64  # q_proj: half of 128 outputs


def test_programs_for_an_npu_run_here_are_drawn_as_what_they_are(tmp_path: Path) -> None:
    """Functional runs: the engines of the device, the clock of this machine."""
    folder = talking(tmp_path / "m", device="rebel100", weights="bf16")
    with dielet.load(folder, threads=2) as npu, Session(tmp_path / "out") as session:
        npu.generate("hi", max_new_tokens=3, temperature=0)
    trace = read(session.files[0])
    assert trace.tree()[0] == "Device 0 (rebel100, run on the host, measured)"
    assert trace.attributes["device"] == "rebel100"
    assert trace.attributes["device_clock"] == "measured"
    assert {"Neural DMA", "Task DMA", "External HDMA"} <= {s.category for s in trace.commands()}
    assert not any(s.flows for s in trace.commands() if s.category == "Neural DMA")
    check_arrows(trace, {n: npu.runtime.files.program(n) for n in programs_of(trace)})
    assert session.summary().commands == len(trace.commands())


@pytest.mark.parametrize(("device", "chiplets"), [("host", 3), ("rebel100", 4)])
def test_bytes_and_operations_are_those_of_the_entries(
    tmp_path: Path, device: str, chiplets: int
) -> None:
    """The columns against each command's own cost, at several bindings."""
    from dataclasses import replace

    from dielet.image import open_directory
    from dielet.profiler.work import Work
    from dielet.program.commands import ENTRIES, Run
    from tests.models import QWEN, compiled

    compiled(tmp_path / "m", QWEN, device=device, chiplets=chiplets, weights="bf16",
             batch_sizes=(1, 3))  # fmt: skip
    files = open_directory(tmp_path / "m")
    for name in ("prefill_16_kv64", "decode_1_kv64", "decode_3_kv64", "head_1"):
        program = files.program(name)
        for past, valid in ((0, 1), (31, 3), (40, 16), (63, 1)):
            rows = min(valid, program.tokens)
            batch = program.phase == "decode" and program.tokens > 1
            run = Run(past, rows, (past,) * rows if batch else ())
            for skips in (True, False):
                described = replace(files.device(), padding="skipped" if skips else "computed")
                work = Work(program, described, None)
                terms = work.terms(np.array([float(rows)]), np.array([float(past)]))
                moved = terms @ work.moved.sum(axis=2)
                ops = terms @ work.ops
                for number, command in enumerate(program.commands):
                    cost = ENTRIES[command.kind].cost(command, run if skips else None)
                    exact = sum(cost.reads.values()) + sum(cost.writes.values())
                    slack = 0.0
                    if command.attrs.get("extent") == "positions":  # copied in whole panels
                        slack = sum(32 * o.region.nbytes / program.capacity
                                    for o in command.operands)  # fmt: skip
                    assert abs(moved[0, number] - exact) <= slack + 1e-6 * exact, command.kind
                    expected = sum(cost.ops.values())
                    assert ops[0, number] == pytest.approx(expected, rel=1e-9), command.kind
