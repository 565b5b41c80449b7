"""Phases, engines, overlap, gaps, the critical path and what if, worked out by hand on the toy."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.analysis import Analysis, analyze
from dielet.errors import UsageError
from tests.analysis.make import (
    DEVICE,
    HOST,
    NEURAL,
    TASK,
    WEIGHTS,
    WORKLOAD,
    Maker,
    answers,
    engine,
    toy,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(toy().write(tmp_path_factory.mktemp("toy") / "toy.pb"))


def test_phases(found: Analysis) -> None:
    phases = {p.name: (p.runs, p.total_ns, p.share) for p in found.phases}
    # Of the 1000 ns: before the prefill 100, between 100, before the head 20.
    assert phases == {
        "prefill": (1, 300, 0.3), "decode": (1, 400, 0.4), "head": (1, 80, 0.08),
        "host": (2, 220, 0.22),
    }  # fmt: skip
    prefill, decode = found.steps
    assert (decode.start_ns, decode.duration_ns, decode.head_ns) == (500, 500, 80)
    assert (prefill.host_ns, decode.host_ns) == (100, 100)
    assert decode.token_ns == 1000 - 400 and prefill.token_ns is None


def test_the_first_token_counts_from_the_first_work_for_it(found: Analysis) -> None:
    (answer,) = found.answers
    assert (answer.prompt_tokens, answer.new_tokens, answer.ttft_ns) == (3, 2, 400)
    assert answer.token_ns == 600 and answer.tokens_per_s == pytest.approx(1 / 600e-9)
    assert found.speed.ttft_ns == 400 and found.speed.token_median_ns == 600
    assert found.speed.prefill_tokens_per_s == pytest.approx(3 / 300e-9)
    assert found.speed.bytes_per_token == 1600 * 2 + 800 + 1700 * 2 + 64 + 90
    assert found.speed.dram_bytes_per_token == 4000


def test_times_per_token_and_outliers(tmp_path: Path) -> None:
    found = analyze(answers([200, 200, 210, 190, 400, 200]).write(tmp_path / "a.pb"))
    tokens = [step.token_ns for step in found.steps]
    assert tokens == [None, 210, 210, 220, 200, 410, 210]
    speed = found.speed
    assert (speed.token_min_ns, speed.token_median_ns, speed.token_max_ns) == (200, 210, 410)
    assert speed.tokens_per_s == pytest.approx(6 / (sum(tokens[1:]) * 1e-9))
    # The median of the decode steps is 200, the deviations' 5: over 250 is an outlier.
    assert [step.outlier for step in found.steps] == [False] * 5 + [True, False]
    decode = next(p for p in found.phases if p.name == "decode")
    assert (decode.outliers, decode.slowest) == (1, 5)


def test_several_answers_are_told_apart(tmp_path: Path) -> None:
    t = answers([100, 100])
    at = 1000
    t.slice((DEVICE, "Device Workload"), "i0_1_Device Workload_0", at, at + 50, phase="prefill",
            program="prefill", tokens=8, valid=8, past=0)  # fmt: skip
    t.slice((DEVICE, "Device Workload"), "i0_2_Device Workload_0", at + 60, at + 90,
            phase="prefill", program="prefill", tokens=8, valid=2, past=8)  # fmt: skip
    t.slice(engine(0, NEURAL), "i0_1_W0_a_0", at, at + 50, kind="linear")
    t.slice(engine(0, NEURAL), "i0_2_W0_a_0", at + 60, at + 90, kind="linear")
    t.slice((DEVICE, HOST), "i0_1_tokens_0", at - 30, at)
    found = analyze(t.write(tmp_path / "a.pb"))
    assert [(a.prompt_tokens, a.new_tokens, a.ttft_ns) for a in found.answers] == [
        (5, 3, 110), (10, 1, 120),
    ]  # fmt: skip


def test_engines(found: Analysis) -> None:
    mine = {(e.scope, e.chiplet, e.engine): (e.busy_ns, e.waiting_ns, e.idle_ns)
            for e in found.engines}  # fmt: skip
    # Of the decode step's 500 ns; chiplet 0's product waits 210 ns for its weights.
    assert mine["decode", 0, NEURAL] == (180, 210, 110)
    assert mine["decode", 1, NEURAL] == (110, 270, 120)
    assert mine["decode", 0, WEIGHTS] == (280, 0, 220)
    assert mine["decode", 0, TASK] == (10, 385, 105)
    assert mine["run", 0, NEURAL] == (480, 210, 310)
    for e in found.engines:
        assert e.busy + e.waiting + e.idle == pytest.approx(1)


def test_overlap(found: Analysis) -> None:
    shares = {(o.scope, o.first, o.second): (o.first_ns, o.both_ns) for o in found.overlap}
    # Chiplet 0 computes 710-810 while 700-780 is fetched; chiplet 1 never does both.
    assert shares["decode", "compute", "dma"] == (210, 70)
    assert shares["decode", "dma", "compute"] == (550, 70)
    assert shares["decode", "dma", "dma"] == (550, 550)
    assert shares["run", "compute", "host"][1] == 0


def test_gaps(found: Analysis) -> None:
    causes = {(c.cause, c.phase, c.engine, c.waited_kind): c.lost_ns for c in found.gap_causes}
    assert causes["dependency", "decode", NEURAL, "weight_copy"] == 200 + 260
    assert causes["delay", "decode", NEURAL, ""] == 10 + 10
    assert causes["dependency", "decode", TASK, "linear"] == 380
    assert causes["delay", "decode", TASK, ""] == 5
    assert causes["imbalance", "decode", NEURAL, ""] == 70  # chiplet 0 ends at 810, 1 at 880
    assert causes["imbalance", "decode", WEIGHTS, ""] == 20  # 760 and 780
    assert causes["no work", "decode", WEIGHTS, ""] == 120 + 120
    # Five engines: before the prefill 50 ns of `tokens` and 50 that nobody recorded, then 80 ns of
    # `sample` and 20, then 20.
    host = {key[1:2] + key[3:]: lost for key, lost in causes.items() if key[0] == "host"}
    assert host == {
        ("prefill", "tokens"): 250, ("prefill", "not recorded"): 250,
        ("decode", "sample"): 400, ("decode", "not recorded"): 100, ("head", "not recorded"): 100,
    }  # fmt: skip
    busy = sum(e.busy_ns for e in found.engines if e.scope == "run")
    assert sum(causes.values()) == 5 * 1000 - busy
    longest = next(gap for gap in found.gaps if gap.engine == TASK)
    assert (longest.start_ns, longest.duration_ns, longest.cause) == (500, 385, "dependency")
    assert longest.waited == "model.model.layers.0.mlp.up_proj_0 (chiplet 1)"


def test_host_time_that_is_not_recorded(tmp_path: Path) -> None:
    t = answers([100] * 3)
    t.slice((DEVICE, HOST), "i1_2_sample_0", 450, 460)
    t.slice((DEVICE, HOST, "b"), "i1_3_tokens_0", 455, 480)  # beside `sample`: counted once
    t.slice((DEVICE, "Device Workload"), "i1_3_Device Workload_0", 1000, 1100, phase="decode",
            program="decode", tokens=1, valid=1, past=9)  # fmt: skip
    t.slice(engine(0, NEURAL), "i1_3_W0_a_0", 1000, 1100, kind="linear")
    found = analyze(t.write(tmp_path / "a.pb"))
    lost = {(c.phase, c.waited_kind): c.lost_ns for c in found.gap_causes if c.cause == "host"}
    assert lost == {
        ("prefill", "work"): 10, ("decode", "work"): 30, ("decode", "sample"): 10,
        ("decode", "tokens"): 20, ("decode", "not recorded"): 1000 - 440 - 30,
    }  # fmt: skip
    between = next(f for f in found.findings if f.rule == "host-between")
    assert between.cause == "What happens in most of it is not recorded."


def test_a_gap_that_the_same_engine_elsewhere_causes(tmp_path: Path) -> None:
    t = Maker(device_clock="modelled")
    arrow = t.flow()
    t.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 100, (arrow,))
    t.slice(engine(1, NEURAL), "i0_0_W0_b_0", 0, 20)
    t.slice(engine(1, NEURAL), "i0_0_W0_c_0", 105, 200, (arrow,))
    causes = {c.cause: c.lost_ns for c in analyze(t.write(tmp_path / "a.pb")).gap_causes}
    assert causes == {"other chiplet": 80, "delay": 5, "imbalance": 100}


def test_critical_path(found: Analysis) -> None:
    parts = {p.name: p.total_ns for p in found.path_parts if (p.phase, p.by) == ("decode", "kind")}
    # 895 <- 885 (5 after 880) <- 770 (10 after 760) <- 500; the run ends 5 after the last.
    assert parts == {"weight_copy": 260, "linear": 110, "copy": 10, "(waiting)": 15,
                     "(end of the run)": 5}  # fmt: skip
    layers = {p.name: p.total_ns for p in found.path_parts
              if (p.phase, p.by) == ("decode", "layer")}  # fmt: skip
    assert layers["layer 0"] == 370 and layers["no layer"] == 10
    (path,) = [p for p in found.paths if p.phase == "decode"]
    assert (path.per_step_ns, path.commands_per_step, path.waiting_ns) == (400, 3, 20)
    bound = {p.name: p.total_ns for p in found.path_parts
             if (p.phase, p.by) == ("decode", "bound")}  # fmt: skip
    assert bound["memory"] == 260 and bound["wait"] == 110 and bound["setup"] == 10


def test_what_if(found: Analysis) -> None:
    gains = {(w.by, w.name): w for w in found.what_if if w.phase == "decode"}
    # Weights in half the time: 500-630, product 640-750, sum 755-765, end of the run 770.
    assert gains["kind", "weight_copy"].after_ns == 270
    assert gains["kind", "weight_copy"].gain == pytest.approx(1 - 270 / 400)
    # Products in half the time: chiplet 1's ends at 825, the sum at 840.
    assert gains["kind", "linear"].after_ns == 345
    assert gains["engine", TASK].after_ns == 395


def test_what_if_of_ones_own(tmp_path: Path) -> None:
    path = toy().write(tmp_path / "toy.pb")
    asked = {w.name: w.after_ns for w in analyze(path, what_if={"linear": 0.0}).what_if
             if w.phase == "decode"}  # fmt: skip
    # Products in no time: chiplet 1's is done at 770, the sum 775-785, the end 790.
    assert asked == {"linear": 290}
    # What the trace's findings say of half the time does not change with what is asked.
    assert analyze(path, what_if={"linear": 0.0}).findings == analyze(path).findings
    same = analyze(path, what_if={"linear": 1.0, WEIGHTS: 1.0}).what_if
    assert all(w.gain == 0 for w in same)


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -1.0])
def test_factors_that_cannot_be(tmp_path: Path, factor: float) -> None:
    path = toy().write(tmp_path / "toy.pb")
    with pytest.raises(UsageError, match="the factor must be a finite number"):
        analyze(path, what_if={"linear": factor})


def test_what_if_of_something_else(tmp_path: Path) -> None:
    path = toy().write(tmp_path / "toy.pb")
    words = r"'nosuch'.*kinds: copy, linear, weight_copy; engines: .*Neural DMA"
    with pytest.raises(UsageError, match=words):
        analyze(path, what_if={"nosuch": 0.5})
    # The other trace of a diff need not have it.
    other = answers([10]).write(tmp_path / "other.pb")
    assert analyze(path, what_if={"copy": 0.5}, diff=other).diff is not None


def test_gantt_and_timeline(found: Analysis) -> None:
    gantt = next(g for g in found.gantts if g.phase == "decode")
    rows = [gantt.rows[n] for n in gantt.row]
    marked = {(rows[n], gantt.operations[gantt.operation[n]]) for n in range(len(rows))
              if gantt.critical[n]}  # fmt: skip
    up = "model.model.layers.0.mlp.up_proj"
    assert marked == {((1, WEIGHTS), f"{up}.weight"), ((1, NEURAL), up), ((0, TASK), "sum"),
                      ((0, NEURAL), "model.lm_head")}  # fmt: skip
    timeline = found.timeline
    row = next(r for r in timeline.rows if (r.chiplet, r.engine) == (0, NEURAL))
    assert sum(row.busy) * timeline.bin_ns / 1000 == pytest.approx(480, rel=0.01)


def test_a_run_on_two_devices_is_under_way_on_both(tmp_path: Path) -> None:
    """Device 1 waits for device 0 within the run, not for a host of which nothing is recorded."""
    t = Maker()
    first, second = "Device 0 (toy, modelled)", "Device 1 (toy, modelled)"
    for n, start in enumerate((0, 200)):
        t.slice((first, WORKLOAD), f"i0_{n}_Device Workload_0", start, start + 100, phase="decode")
        t.slice((first, NEURAL), f"i0_{n}_W0_a_0", start, start + 100)
        t.slice((second, NEURAL), f"i0_{n}_W0_b_0", start + 40, start + 90)
    found = analyze(t.write(tmp_path / "a.pb"))
    lost = {(c.cause, c.waited_kind): c.lost_ns for c in found.gap_causes}
    assert lost["host", "not recorded"] == 2 * 100  # between the runs, on either device
    assert sum(lost.values()) == 2 * 300 - sum(e.busy_ns for e in found.engines if e.scope == "run")
    (gantt, *_) = found.gantts
    assert gantt.rows == ((None, f"Device 0 {NEURAL}"), (None, f"Device 1 {NEURAL}"))


def test_a_step_is_drawn_in_order_of_time(tmp_path: Path) -> None:
    """Heads come first among the kinds of runs where the prompt's step has one."""
    t = Maker()
    for n, (phase, start) in enumerate([("prefill", 0), ("decode", 200)]):
        for w, name in enumerate([phase, "head"]):
            begin = start + 60 * w
            t.slice(
                (DEVICE, WORKLOAD), f"i{n}_0_Device Workload_{w}", begin, begin + 50, phase=name
            )
            t.slice(engine(0, NEURAL), f"i{n}_0_W{w}_{name}_0", begin, begin + 50)
    gantt = next(g for g in analyze(t.write(tmp_path / "a.pb")).gantts if g.phase == "decode")
    assert gantt.start_ns == (0, 60)
    assert [gantt.operations[n] for n in gantt.operation] == ["decode", "head"]
