"""Two models that run at the same time, each on devices of its own: neither changes the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.analysis import Analysis, analyze
from tests.analysis.make import HOST, NEURAL, WEIGHTS, WORKLOAD, Maker

A, B = "Device 0 (toy, modelled), model 1: a", "Device 0 (toy, modelled), model 2: b"
WAIT = 40  # ns that every product waits for its weights


def step(t: Maker, device: str, name: str, begin: int, end: int, host: int, past: int) -> None:
    """A run on two chiplets: on each a product that waits for its weights, in words."""
    phase = "decode" if past else "prefill"
    t.slice((device, HOST), f"{name}_for {device[-1]}_0", begin - host, begin)
    t.slice((device, WORKLOAD), f"{name}_Device Workload_0", begin, end, phase=phase,
            program=phase, tokens=1, valid=1 if past else 5, past=past)  # fmt: skip
    for chiplet in (0, 1):
        place = device, f"Chiplet {chiplet}"
        t.slice((*place, WEIGHTS), f"{name}_W0_w_0", begin, begin + WAIT, kind="weight_copy")
        t.slice((*place, NEURAL), f"{name}_W0_a_0", begin + WAIT, end, kind="linear",
                waited_for=f"w_0 (chiplet {chiplet})")  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Runs, with the host's work before each:

    a       90 [100      300]    [320  420]   [450     550]
    b         130 [150            400] [410               600]
    """
    t = Maker(device_clock="modelled", dielet_version="0", dropped_command_count=0)
    step(t, A, "i0_0", 100, 300, 10, 0)
    step(t, A, "i1_0", 320, 420, 20, 5)
    step(t, A, "i1_1", 450, 550, 30, 6)
    step(t, B, "i2_0", 150, 400, 20, 0)
    step(t, B, "i3_0", 410, 600, 10, 5)
    t.counter((A, "Chiplet 0", "DRAM GB/s"), "GB/s", {0: 2.0, 1000: 0.0})
    t.counter((B, "Chiplet 1", "DRAM GB/s"), "GB/s", {0: 3.0, 1000: 0.0})
    return analyze(t.write(tmp_path_factory.mktemp("two") / "a.pb"))


def test_causes_are_those_of_the_own_device(found: Analysis) -> None:
    assert found.coverage.resolved_waits == 1 and found.coverage.dependencies == 5 * 2
    lost = {(c.phase, c.engine, c.waited_engine): (c.gaps, c.lost_ns) for c in found.gap_causes
            if c.cause == "dependency"}  # fmt: skip
    assert lost == {
        ("prefill", NEURAL, WEIGHTS): (4, 4 * WAIT), ("decode", NEURAL, WEIGHTS): (6, 6 * WAIT),
    }  # fmt: skip
    parts = {(p.phase, p.name): p.total_ns for p in found.path_parts if p.by == "kind"}
    assert parts == {
        ("prefill", "weight_copy"): 2 * WAIT, ("prefill", "linear"): 200 + 250 - 2 * WAIT,
        ("decode", "weight_copy"): 3 * WAIT, ("decode", "linear"): 100 + 100 + 190 - 3 * WAIT,
    }  # fmt: skip


def test_runs_have_the_bytes_of_their_own_counters(found: Analysis) -> None:
    moved = {m.phase: m.bytes for m in found.traffic.moved if m.place == "DRAM"}
    assert moved == {"prefill": 200 * 2 + 250 * 3, "decode": 200 * 2 + 190 * 3}
    (whole,) = [r for r in found.roofline if r.level == "run"]
    assert whole.bytes == 400 * 2 + 440 * 3


def test_steps_follow_those_of_their_own_model(found: Analysis) -> None:
    told = [(s.instance, s.answer, s.host_ns, s.token_ns) for s in found.steps]
    assert told == [(0, 0, 10, None), (2, 1, 20, None), (1, 0, 20, 120), (3, 1, 10, 200),
                    (1, 0, 30, 130)]  # fmt: skip
    answers = [(a.start_ns, a.new_tokens, a.ttft_ns, a.token_ns) for a in found.answers]
    assert answers == [(90, 3, 210, 125), (130, 2, 270, 200)]
    assert (found.speed.token_min_ns, found.speed.token_max_ns) == (120, 200)
    # From 90 on nothing ran until 100, and then something always.
    (host,) = [p for p in found.phases if p.name == "host"]
    assert (host.total_ns, host.min_ns, host.median_ns, host.max_ns) == (10, 10, 20, 30)
    assert any(note.text.startswith("2 models ran") for note in found.coverage.notes)


def test_between_runs_the_host_worked_for_their_own_model(found: Analysis) -> None:
    """The window is 90-600; each device has a weight and a product engine on two chiplets."""
    lost = {(c.phase, c.waited_kind): c.lost_ns // 4 for c in found.gap_causes if c.cause == "host"}
    # Of a: 10, 20 and 30, and nothing from 550 on.  Of b: 20 and 10, and nothing from 90 to 130.
    assert lost == {
        ("prefill", "for a"): 10, ("prefill", "for b"): 20, ("prefill", "not recorded"): 40,
        ("decode", "for a"): 20 + 30, ("decode", "for b"): 10, ("decode", "not recorded"): 50,
    }  # fmt: skip


def test_a_model_on_two_devices_counts_its_chiplets_over_both(tmp_path: Path) -> None:
    """Of each of two models device and die 1 waits for 0, and is known by the runs they share."""
    t = Maker()
    for model in (0, 1):
        devices = [f"Device {2 * model + n} (toy, modelled)" for n in (0, 1)]
        t.slice((devices[0], NEURAL), f"i{model}_0_W0_a_0", 10 * model, 100)
        t.slice((devices[1], NEURAL), f"i{model}_0_W0_b_0", 100, 200, waited_for="a_0 (chiplet 0)")
        t.slice((devices[1], NEURAL), f"i{model}_0_W0_c_0", 210, 300)
        t.slice((devices[0], NEURAL), f"i{model}_0_W0_d_0", 300, 400, waited_for="c_0 (chiplet 1)")
        for device in devices:
            t.counter((device, "DRAM GB/s"), "GB/s", {0: 1.0 + model, 1000: 0.0})
    found = analyze(t.write(tmp_path / "a.pb"))
    assert found.coverage.resolved_waits == 1 and found.coverage.dependencies == 4
    moved = {m.phase: m.bytes for m in found.traffic.moved}
    assert moved == {"instance 0": 2 * 400 * 1, "instance 1": 2 * 390 * 2}
    assert any(note.text.startswith("2 models ran") for note in found.coverage.notes)


def test_a_window_may_begin_within_the_prompt_of_either(tmp_path: Path) -> None:
    t = Maker()
    for device, name, begin, past in (
        (A, "i0_0", 0, 0), (B, "i2_0", 50, 0), (A, "i0_1", 200, 0), (B, "i2_1", 250, 8),
    ):  # fmt: skip
        t.slice((device, WORKLOAD), f"{name}_Device Workload_0", begin, begin + 100,
                phase="prefill", valid=8, past=past)  # fmt: skip
        t.slice((device, NEURAL), f"{name}_W0_a_0", begin, begin + 100)
    path = t.write(tmp_path / "a.pb")
    whole = [(a.prompt_tokens, a.ttft_ns) for a in analyze(path).answers]
    assert whole == [(8, 100), (16, 300), (8, 100)]
    _, late = analyze(path, window_ms=(160e-6, 1.0)).answers
    assert (late.prompt_tokens, late.ttft_ns) == (8, None)
