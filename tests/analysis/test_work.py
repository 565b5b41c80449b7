"""Operations, shapes, layers, the roofline, bytes and memory, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.analysis import Analysis, analyze
from dielet.analysis.layers import short_name
from dielet.analysis.traffic import weight_bytes
from tests.analysis.make import DEVICE, NEURAL, TASK, WEIGHTS, WORKLOAD, Maker, engine, toy

UP = "model.model.layers.*.mlp.up_proj"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(toy().write(tmp_path_factory.mktemp("toy") / "toy.pb"))


def test_operations(found: Analysis) -> None:
    rows = {(o.operation, o.phase): o for o in found.operations}
    up = rows[UP, "decode"]
    assert (up.commands, up.time_ns, up.mean_ns, up.bytes, up.ops) == (2, 210, 105, 3400, 3200)
    assert up.share == pytest.approx(0.16) and up.wasted_ns == pytest.approx(210 * 0.84)
    assert up.ops_per_s == pytest.approx(3200 / 210e-9)
    assert up.imbalance == pytest.approx(110 / 105 - 1) and up.path_ns == 110
    assert up.bound == {"wait": 1.0} and up.shape == "1x25 . 25x32"
    weights = rows[f"{UP}.weight", "decode"]
    # 200 ns at 80 % and 260 ns at 60 % of the peak.
    assert weights.share == pytest.approx((200 * 0.8 + 260 * 0.6) / 460)
    assert weights.wasted_ns == pytest.approx(200 * 0.2 + 260 * 0.4)
    assert sum(o.time_share for o in found.operations) == pytest.approx(1)
    assert [o.time_ns for o in found.operations] == sorted((o.time_ns for o in found.operations),
                                                           reverse=True)  # fmt: skip


def test_shares_above_one_waste_nothing(tmp_path: Path) -> None:
    t = Maker()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 100, kind="linear", bytes=1, percent=300)
    t.slice(engine(0, NEURAL), "i0_0_W0_a_1", 100, 200, kind="linear", bytes=1, percent=50)
    (row,) = analyze(t.write(tmp_path / "a.pb")).operations
    assert (row.share, row.wasted_ns) == (0.75, 50)


def test_shapes(found: Analysis) -> None:
    mine = {(s.kind, s.shape, s.phase): (s.commands, s.time_ns) for s in found.shapes}
    assert mine["linear", "1x25 . 25x32", "decode"] == (2, 210)
    assert mine["weight_copy", "1x1600", "decode"] == (3, 540)


def test_layers_and_heat(found: Analysis) -> None:
    layers = {(row.phase, row.layer): row for row in found.layers}
    zero = layers["decode", 0]
    # 500-760, 710-810, 770-880 cover 500-880; on the path are 260 and 110.
    assert (zero.wall_ns, zero.time_ns, zero.path_ns) == (380, 670, 370)
    assert zero.busy_ns == {WEIGHTS: 460, NEURAL: 210} and zero.ops == 3200
    assert layers["decode", 1].wall_ns == 80 and layers["decode", -1].commands == 1
    # Chiplet 0 has 300 ns of it, chiplet 1 370.
    assert zero.imbalance == pytest.approx(370 / 335 - 1)
    (heat,) = found.heat
    assert heat.layers == (0, 1)
    cells = dict(zip(heat.operations, heat.values[0], strict=True))
    assert cells == {"mlp.up_proj": 210, "mlp.up_proj.weight": 460, "mlp.down_proj.weight": 0}
    assert short_name("fused(model.model.layers.3.mlp.down+model.model.layers.3.mlp.add)") == (
        "mlp.down + mlp.add"
    )


def test_layers_are_per_run_of_the_phase(tmp_path: Path) -> None:
    """Of three decode runs one has layer 1; the figures of both add up to the phase's."""
    t = Maker()
    for n in range(3):
        name, begin = f"i1_{n}", 1000 * n
        end = begin + (400 if n == 0 else 100)
        t.slice((DEVICE, WORKLOAD), f"{name}_Device Workload_0", begin, end, phase="decode")
        t.slice((DEVICE, NEURAL), f"{name}_W0_layers.0.a_0", begin, begin + 100, bytes=30)
        if n == 0:
            t.slice((DEVICE, NEURAL), f"{name}_W0_layers.1.a_0", begin + 100, end, operations=60)
    found = analyze(t.write(tmp_path / "a.pb"))
    zero, one = found.layers
    assert (zero.wall_ns, zero.time_ns, zero.path_ns) == (100, 100, 100)
    assert (one.wall_ns, one.time_ns, one.path_ns, one.ops) == (100, 100, 100, 20)
    assert one.busy_ns == {NEURAL: 100} and one.commands == 1
    (phase,) = [p for p in found.phases if p.name == "decode"]
    assert 3 * (zero.time_ns + one.time_ns) == phase.total_ns
    (heat,) = found.heat
    assert heat.values == ((100,), (100,))


def test_roofline(found: Analysis) -> None:
    assert found.peaks.dram == 2e10 and found.peaks.ridge == {"bf16": 10.0}
    decode = next(r for r in found.roofline if (r.level, r.phase) == ("phase", "decode"))
    # 4000 bytes and 3200 operations in 400 ns; the peaks are 20 bytes and 200 operations per ns.
    assert decode.intensity == pytest.approx(0.8)
    assert decode.bytes_per_s == pytest.approx(1e10) and decode.ops_per_s == pytest.approx(8e9)
    assert decode.share == pytest.approx(0.5) and decode.verdict == "memory"
    run = next(r for r in found.roofline if r.level == "run")
    assert run.seconds == pytest.approx(1e-6) and run.ops == 600 + 3200 + 400
    up = next(r for r in found.roofline if (r.level, r.name) == ("operation", UP))
    assert up.peak_ops_per_s == 1e11 and up.peak_bytes_per_s is None and up.share == 0.16
    assert up.verdict == "wait"


def test_verdicts(found: Analysis) -> None:
    verdicts = {(v.phase, v.kind): (v.verdict, v.shares) for v in found.verdicts}
    assert verdicts["decode", "weight_copy"] == ("memory", {"memory": 1.0})
    assert verdicts["prefill", "linear"] == ("compute", {"compute": 1.0})


def test_bytes(found: Analysis) -> None:
    routes = {(r.phase, r.route): r for r in found.traffic.routes}
    weights = routes["decode", "dram -> scratchpad"]
    assert (weights.commands, weights.bytes, weights.small) == (3, 4000, 3)
    sent = routes["decode", "shared -> shared of chiplet n"]
    assert (sent.link, sent.small, sent.small_ns) == ("between chiplets", 1, 10)
    dram = next(m for m in found.traffic.moved if m.phase == "decode")
    assert (dram.place, dram.bytes, dram.source) == ("DRAM", 4000, "commands")
    assert dram.share == pytest.approx(0.5)


def test_weights_by_shape_and_format() -> None:
    assert weight_bytes("128x576 . 576x128", "bf16") == 576 * 128 * 2
    # Half a byte each, and per group of 32 a scale and a minimum of two bytes.
    assert weight_bytes("1x576 . 576x128", "int4g32m") == 576 * 128 // 2 + 576 // 32 * 128 * 4
    assert weight_bytes("1x576", "bf16") == weight_bytes("1x4 . 4x4", "no format") == 0


def test_a_divided_linear_reads_its_weights_once(tmp_path: Path) -> None:
    t = Maker(device_clock="measured", dielet_version="0")
    shape = {"kind": "linear", "shape": "4x64 . 64x32", "format": "bf16",
             "memory": "cache, dram -> cache"}  # fmt: skip
    core = (DEVICE, "Chiplet 0", "Cores")
    t.slice(core, "i0_0_W0_a_0", 0, 10, bytes=6000, **shape)
    t.slice((*core, "worker 1"), "i0_0_W0_a_0", 0, 10, bytes=2000, **shape)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert found.traffic.moved[0].bytes == 64 * 32 * 2


def test_counters_go_before_commands(tmp_path: Path) -> None:
    t = toy()
    chiplet = (DEVICE, "Chiplet 0")
    t.counter((*chiplet, "DRAM GB/s"), "GB/s", {500: 5.0, 700: 10.0, 900: 0.0})
    t.counter((*chiplet, "link GB/s"), "GB/s", {500: 0.5, 900: 0.0})
    t.counter((*chiplet, "DRAM bytes in use"), "bytes", {500: 3000, 920: 3100})
    t.counter((*chiplet, "shared-memory bytes in use"), "bytes", {500: 10, 750: 70, 900: 0})
    found = analyze(t.write(tmp_path / "a.pb"))
    moved = {(m.phase, m.place): (m.bytes, m.source) for m in found.traffic.moved}
    assert moved["decode", "DRAM"] == (200 * 5 + 200 * 10, "counters")
    assert moved["decode", "all links"] == (200, "counters")
    assert found.coverage.dram_explained == pytest.approx(4000 / 3000)
    assert any("133%" in note.text for note in found.coverage.notes)
    memory = found.memory
    assert memory.peaks == {"DRAM": 3100, "shared-memory": 70}
    owners = {(o.memory, o.owner): o.bytes for o in memory.owners if o.chiplet == 0}
    # Chiplet 0's weights are 1600 and 800 bytes; the product on it ran at 750.
    assert owners["DRAM", "weights"] == 2400 and owners["DRAM", "cache and parameters"] == 700
    assert owners["shared-memory",
                  "activations, while model.model.layers.0.mlp.up_proj ran"] == 70  # fmt: skip


def test_weights_that_are_read_again(tmp_path: Path) -> None:
    t = Maker()
    name = "i0_0_W0_model.model.layers.0.up"
    weight = {"kind": "weight_copy", "memory": "dram -> scratchpad", "bytes": 64 * 32 * 2}
    for n in range(3):
        t.slice(engine(0, WEIGHTS), f"{name}.weight_{n}", 10 * n, 10 * n + 10, **weight)
    t.slice(engine(0, NEURAL), f"{name}_0", 10, 20, kind="linear", shape="1x64 . 64x32",
            format="bf16", bytes=10)  # fmt: skip
    (again,) = analyze(t.write(tmp_path / "a.pb")).traffic.rereads
    assert (again.times, again.extra_bytes) == (3, 2 * 64 * 32 * 2)


def test_weights_are_read_once_per_chunk(tmp_path: Path) -> None:
    t = Maker(device_clock="modelled", dielet_version="0")
    for n in range(3):
        at = 100 * n
        t.slice((DEVICE, "Device Workload"), f"i0_{n}_Device Workload_0", at, at + 90,
                phase="prefill", program="p", tokens=4, valid=4, past=4 * n)  # fmt: skip
        t.slice(engine(0, WEIGHTS), f"i0_{n}_W0_a.weight_0", at, at + 50, kind="weight_copy",
                bytes=1000, memory="dram -> scratchpad")  # fmt: skip
    (again,) = analyze(t.write(tmp_path / "a.pb")).traffic.rereads
    assert (again.times, again.extra_bytes) == (3, 2000)


def test_peaks_of_a_device_that_is_asked_for(tmp_path: Path) -> None:
    t = Maker()
    t.slice(engine(0, TASK), "i0_0_W0_a_0", 0, 1000, kind="copy", bytes=600_000,
            memory="dram -> shared")  # fmt: skip
    path = t.write(tmp_path / "a.pb")
    unknown = analyze(path)
    assert unknown.peaks.dram is None and unknown.source.peaks == ""
    assert any("--device" in note.text for note in unknown.coverage.notes)
    found = analyze(path, device="rebel100")
    assert found.peaks.dram == 1.2e12 and found.peaks.ridge["bf16"] == pytest.approx(213.33, 1e-4)
    assert found.roofline[0].share == pytest.approx(0.5)
