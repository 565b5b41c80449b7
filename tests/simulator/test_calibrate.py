"""The calibration: what it measures can be read back and is used; a command or two for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.cli.main import main
from dielet.devices import device_text, load_device, read_device
from dielet.program.commands import ENTRIES
from dielet.program.commands import Run as Bound
from dielet.simulator import calibrated, simulate, simulate_program
from dielet.simulator.calibrate import (
    Measured,
    Scope,
    _attentions,
    _linears,
    _small,
    calibrate,
    host_toml,
)
from dielet.simulator.calibrated import calibrated_host
from dielet.simulator.microbench import Bench
from tests.models import LLAMA, QWEN, plan

CONFIG = Path(__file__).parent / "configs" / "qwen3-1.7b.json"
FOUND = Measured(
    rates={"linear int8g128.k512 1": 7e10, "linear int8g128.k2048 1": 8e10, "rmsnorm bf16 1": 5e10},
    alone=3e10, together=4e10, setup=30.0, signal=50.0, launch=25000.0, latency=90.0,
    peaks={"int8": 7e11, "bf16": 3e11, "f32": 1e11},
)  # fmt: skip


def test_what_was_measured_is_read_back() -> None:
    device = read_device(host_toml(FOUND), "host.toml")
    core = device.engine["core"]
    assert core.rates["linear int8g128.k2048 1"] == 80 * 10**9
    assert (core.setup, core.port["dram"], device.launch) == (30_000, 30 * 10**9, 25_000_000)
    assert device.memory["dram"].bandwidth == 40 * 10**9
    assert core.alongside == 100
    assert core.peak == {"int8": 7 * 10**11, "bf16": 3 * 10**11, "f32": 10**11}
    assert device.memory["dram"].latency == 90_000 and device.signal.chiplet == 50_000
    assert core.commands == load_device("host").engine["core"].commands
    assert simulate(LLAMA, device, 8, 4, max_seq_len=64).tpot_s > 0


def test_faster_kernels_give_faster_programs() -> None:
    program = plan(QWEN, weights="int8").programs[2]
    device = read_device(host_toml(FOUND), "host.toml")
    slower = host_toml(FOUND).replace("70000.0 MOP/s", "7000.0 MOP/s").replace("80000", "8000")
    a, b = (
        simulate_program(program, d, Bound(3, 1)).duration
        for d in (device, read_device(slower, "host.toml"))
    )
    assert a < b


def test_the_cache_keeps_one_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert calibrated_host() is None
    path = tmp_path / "dielet" / "devices" / "host.toml"
    path.parent.mkdir(parents=True)
    path.write_text(host_toml(FOUND))
    assert calibrated_host() == read_device(host_toml(FOUND), str(path))


def test_the_calibrated_host_is_what_host_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.toml"
    monkeypatch.setattr(calibrated, "calibrated_path", lambda: path)
    before = simulate(LLAMA, "host", 8, 4, max_seq_len=64)
    path.write_text(host_toml(FOUND))
    after = simulate(LLAMA, "host", 8, 4, max_seq_len=64)
    assert before.device.text == device_text("host")
    assert after.device == calibrated_host() and after.tpot_s != before.tpot_s
    assert main(["devices"]) == 0
    assert "this machine's cores, as measured here" in capsys.readouterr().out
    path.write_text("name = 3")
    for command in (["devices"], ["simulate", str(CONFIG), "--device", "host"]):
        assert main(command) == 1
        message = capsys.readouterr().err
        assert "--calibrate`, or delete the file" in message and str(path) in message


def test_single_commands_are_timed() -> None:
    bench = Bench()
    linears = list(_linears("int8g128", 512, 1, 256))[:50]
    nanoseconds = bench.time(linears, 1, rounds=2).command([True] * 50)
    assert 500 < nanoseconds < 1e7
    split = bench.time(linears, 2, rounds=2)
    assert len(split.rounds[0]) == 2 and split.whole() > 0
    attention = next(_attentions(64, 3, 1, 64))
    assert ENTRIES["attention"].depth(attention, Bound(63, 1)) == 64
    kinds = {commands[0].kind for commands in _small(1)}
    assert kinds == {"rmsnorm", "silu_mul", "quantize", "rotary", "kv_append", "select"}


@pytest.mark.slow
def test_this_machine_can_be_measured() -> None:
    said: list[str] = []
    found = calibrate(said.append, Scope(("int8g64",), (512, 2048), (1,)))
    device = read_device(host_toml(found), "host.toml")
    rates = device.engine["core"].rates
    assert {"linear int8g64.k512 1", "linear int8g64+residual.k2048 1"} <= set(rates)
    kinds = {name.split()[0] for name in rates}
    assert {"attention", "rmsnorm", "rotary", "kv_append", "select"} <= kinds
    assert len(said) == len(rates) + 6 + 3
    # No linear that was measured is faster than the probe, but for what clocks do meanwhile.
    peaks = device.engine["core"].peak
    assert max(r for n, r in rates.items() if n.startswith("linear")) < 1.2 * peaks["int8"]
    assert peaks["int8"] > peaks["bf16"] > peaks["f32"] > 10**9
