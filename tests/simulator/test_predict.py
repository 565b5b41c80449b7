"""Whole answers: real model shapes without weights, sweeps, sensitivity, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dielet
from dielet.cli.main import main
from dielet.devices import load_device
from dielet.errors import CapacityError, DieletError, MissingFile, Unsupported, UsageError
from dielet.simulator import calibrated, simulate
from dielet.simulator.sweep import parse_settings, sweep
from tests.models import LLAMA, QWEN, compiled

CONFIGS = Path(__file__).parent / "configs"
QWEN_17B, LLAMA_8B, LLAMA_70B = (
    CONFIGS / f"{name}.json" for name in ("qwen3-1.7b", "llama-3-8b", "llama-3-70b")
)


@pytest.fixture(autouse=True)
def _as_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is the built-in one, whether this machine was measured or not."""
    monkeypatch.setattr(calibrated, "calibrated_host", lambda: None)


KEYS = {"device", "ttft_s", "tpot_s", "decode_tok_s", "bound_by", "bytes", "programs"}


def test_qwen3_on_four_chiplets_beside_its_roofline() -> None:
    found = dielet.simulate(QWEN_17B, device="rebel100", max_seq_len=1024)
    facts = found.to_dict()
    assert set(facts) > KEYS
    # 28 layers and the head at bf16, from four stacks of 1.2 TB/s each.
    spec = found.clock.programs.planner.spec
    roofline = 2 * spec.parameters / 4.8e12
    assert roofline < found.tpot_s < 1.8 * roofline
    assert found.bound_by["memory"] > 0.6
    assert sum(found.bound_by.values()) == pytest.approx(1)
    assert facts["programs"]["decode_1_kv512"]["runs"] == 127
    assert facts["programs"]["head_1"]["runs"] == 128
    rates = [row["decode_tok_s"] for row in facts["context"]]
    assert rates == sorted(rates, reverse=True) and len(rates) == 2
    json.dumps(facts, allow_nan=False)


def test_a_device_of_one_die_and_four_of_it() -> None:
    one, four = (
        simulate(LLAMA_8B, device, new_tokens=2, max_seq_len=512, weights="int8")
        for device in ("atom", "atom-x4")
    )
    # int8 at 256 GB/s; the embedding is looked up on the host.
    assert 7.5e9 / 256e9 < one.tpot_s < 1.2 * 7.5e9 / 256e9
    assert one.tpot_s / 4 < four.tpot_s < one.tpot_s / 3
    assert "device_to_device" in four.bytes and "device_to_device" not in one.bytes


@pytest.mark.slow
def test_a_70b_on_four_devices() -> None:
    found = simulate(LLAMA_70B, "atom-x4", new_tokens=2, max_seq_len=512, weights="int4")
    bytes_per_device = 70e9 * 5 / 8 / 4  # int4 in groups of 32 with scale and minimum
    assert bytes_per_device / 256e9 < found.tpot_s < 1.5 * bytes_per_device / 256e9


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(CapacityError, match=r"does not fit atom: chiplet 0 needs 1.*smaller model"):
        simulate(LLAMA_70B, "atom")
    with pytest.raises(CapacityError, match=r"weights=int4 \(.*num_devices=\d+ \("):
        simulate(LLAMA_70B, "atom-x4")


def test_chunks_and_rungs_follow_the_prompt() -> None:
    found = simulate(LLAMA, "rebel100", 40, 100, prefill_chunk=16, max_seq_len=160,
                     kv_ladder=(64, 160))  # fmt: skip
    assert [(s.shape.name, s.past, s.rows) for s in found.prefill] == [
        ("prefill_16_kv64", 0, 16),
        ("prefill_16_kv64", 16, 16),
        ("prefill_16_kv64", 32, 8),
    ]
    assert [s.head for s in found.prefill] == [False, False, True]
    names = [s.shape.name for s in found.decode]
    assert len(names) == 99 and names.count("decode_1_kv64") == 24
    assert found.ttft_s < found.ttft_s + found.tpot_s < 1


def test_a_batch_reads_the_weights_once() -> None:
    one, four = (simulate(QWEN_17B, new_tokens=2, batch=n, max_seq_len=512) for n in (1, 4))
    assert one.tpot_s < four.tpot_s < 1.5 * one.tpot_s
    assert four.decode_tok_s > 2.5 * one.decode_tok_s


@pytest.mark.parametrize("device", ["host", "rebel100"])
def test_an_int8_cache_halves_its_part_of_the_time(device: str) -> None:
    """Each step's time beyond one without context, on the shape of Qwen3-1.7B."""
    parts = []
    for kv in ("bf16", "int8"):
        options = {"new_tokens": 2, "max_seq_len": 8192, "weights": "int8", "kv": kv}
        short, long = (simulate(QWEN_17B, device, n, **options) for n in (16, 8000))
        parts.append(long.tpot_s - short.tpot_s)
    assert 0.45 < parts[1] / parts[0] < 0.65


def test_records_of_an_answer_follow_each_other() -> None:
    found = simulate(LLAMA, "rebel100", 20, 4, max_seq_len=64)
    executions = list(found.executions())
    assert [(e.instance, e.sequence, e.workload) for e in executions] == [
        (0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1), (1, 2, 0), (1, 2, 1),
    ]  # fmt: skip
    launch = found.device.launch
    for before, after in pairwise(executions):
        assert after.start >= before.end + launch
    total = sum(map(found.clock.duration, found.stages()))
    assert executions[-1].end == total


def test_the_host_on_a_grid_of_positions() -> None:
    found = simulate(LLAMA, "host", 30, 200, max_seq_len=256, weights="int8")
    known = len(found.clock._known)
    assert found.tpot_s > 0 and found.decode_tok_s > 0
    steps = [found.clock.duration(stage) for stage in found.decode]
    assert steps == sorted(steps) and len(found.clock._known) - known < 40


def test_a_compiled_model_is_simulated_as_it_was_compiled(tmp_path: Path) -> None:
    files = compiled(tmp_path / "m", QWEN, weights="int4", kv="int8", device="rebel100")
    found = simulate(files.path, "rebel100", 20, 8)
    planner = found.clock.programs.planner
    assert planner.ladder == files.manifest.kv_ladder and planner.weights == "int4"
    for stage in found.stages():
        assert found.clock.programs.find(stage.shape) == files.program(stage.shape.name)
    elsewhere = simulate(files.path, "atom", 20, 8)
    assert elsewhere.clock.programs.planner.weights == "int4"


@pytest.mark.parametrize(
    ("device", "options", "lanes"),
    [
        ("rebel100", {"chiplets": 2, "partition": "column_row"}, {"c0", "c1"}),
        ("rebel100", {"num_devices": 2, "chiplets": 1}, {"c0", "c1"}),
        ("host", {"chiplets": 1}, {"worker 0"}),
    ],
    ids=str,
)
def test_a_directory_has_its_own_chiplets_devices_and_partition(
    tmp_path: Path, device: str, options: dict, lanes: set[str]
) -> None:
    files = compiled(tmp_path / "m", QWEN, weights="bf16", device=device, **options)
    found = simulate(files.path, device, 20, 4)
    for stage in found.stages():
        for timing in found.clock.timings(stage):
            assert timing.program == files.program(timing.program.name)
            assert {name.split(".")[0] for name in timing.lane_names} == lanes
    count = options.get("num_devices", 1), options["chiplets"]
    assert (found.device.devices, found.device.chiplets) == count
    launched = simulate(files.path, device, 20, 4, changes={"launch": "x2"})
    assert launched.clock.programs._files is not None and launched.tpot_s > found.tpot_s
    # What is lowered anew keeps them; what is asked for goes before them.
    fewer = simulate(files.path, device, 20, 4, changes={"layers": 1})
    assert fewer.clock.programs._files is None
    assert (fewer.device.devices, fewer.device.chiplets) == count
    assert fewer.clock.programs.planner.partition == options.get("partition", "column")
    more = simulate(files.path, device, 20, 4, changes={"chiplets": 4})
    assert more.device.chiplets == 4 and more.device.devices == count[0]


def test_settings() -> None:
    assert parse_settings(["a=1,2", "b.c=0.6 TB/s"]) == {"a": ["1", "2"], "b.c": ["0.6 TB/s"]}
    for bad in ("a", "a=", "=1", "a=1,,2"):
        with pytest.raises(UsageError, match="--set"):
            parse_settings([bad])


def test_sweeps_as_table_csv_and_picture() -> None:
    settings = {"chiplets": ["1", "2", "4"], "memory.dram.bandwidth": ["x0.5", "1.2 TB/s"]}
    found = sweep(
        settings, lambda c: simulate(QWEN_17B, new_tokens=2, max_seq_len=512, layers=2, changes=c)
    )
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    assert len(rows) == 6 and rows[0]["chiplets"] == "1"
    rates = [float(row["decode_tok_s"]) for row in rows]
    assert rates[0] < rates[2] < rates[4] and rates[0] < rates[1]
    assert found.table().count("\n") == 6
    picture = ElementTree.fromstring(found.svg())
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 and all(len(line.get("points").split()) == 3 for line in lines)


def test_a_point_that_does_not_fit_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", str(LLAMA_70B), "--new-tokens", "2", "--max-seq-len", "512", "--json"]
    small = ["--set", "layers=1", "--set", "memory.dram.size=1 MB,36 GB"]
    assert main([*argv, *small]) == 0
    fails, fits = json.loads(capsys.readouterr().out)["points"]
    assert "does not fit" in fails["problem"] and fits["tpot_s"] > 0
    assert main([*argv[:-1], *small]) == 0
    assert "does not fit" in capsys.readouterr().out
    assert main([*argv, "--set", "layers=1", "--set", "memory.dram.size=1 MB,2 MB"]) == 1
    assert "does not fit" in capsys.readouterr().err


def test_every_remedy_that_is_proposed_works_as_it_is_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["simulate", str(QWEN_17B), "--new-tokens", "2", "--max-seq-len", "512",
            "--set", "layers=2", "--set", "memory.dram.size=200 MB"]  # fmt: skip
    assert main(argv) == 1
    proposed = re.findall(r"--set (\S+)", capsys.readouterr().err)
    assert {text.partition("=")[0] for text in proposed} >= {"weights", "chiplets", "devices"}
    for text in proposed:
        assert main([*argv, "--set", text]) == 0, text


def test_figures_and_options_can_be_set() -> None:
    base = simulate(LLAMA, "rebel100", 8, 4, max_seq_len=64)
    assert base.clock.programs.planner.partition == "column"
    other = simulate(
        LLAMA, "rebel100", 8, 4, max_seq_len=64,
        changes={"partition": "column_row", "weights": "int8", "prompt_tokens": "16",
                 "launch": "x0"},
    )  # fmt: skip
    planner = other.clock.programs.planner
    assert (planner.partition, planner.weights, other.prompt_tokens) == ("column_row", "int8", 16)
    assert other.device.launch == 0
    wider = simulate(LLAMA, "rebel100", 8, 4, max_seq_len=64, changes={"intermediate": "320"})
    assert wider.clock.programs.planner.spec.intermediate == 320
    assert wider.bytes["dram"] > base.bytes["dram"]
    deeper = simulate(LLAMA, "rebel100", 8, 4, max_seq_len=64, changes={"layers": "5"})
    assert deeper.clock.programs.planner.spec.layers == 5
    for changes, complaint in (
        ({"heads": "5"}, "not a multiple of kv_heads"),
        ({"memory.drum.bandwidth": "1 GB/s"}, "has no .memory.drum."),
        ({"layers": "few"}, "whole number"),
        ({"memory.dram.bandwidth": "x"}, "cannot be taken"),
    ):
        with pytest.raises(UsageError, match=complaint):
            simulate(LLAMA, changes=changes)


def test_what_is_refused() -> None:
    for given, error, complaint in (
        ({"prompt_tokens": 0}, UsageError, "at least 1"),
        ({"prompt_tokens": 100, "new_tokens": 2, "max_seq_len": 64}, CapacityError, "context of"),
        ({"device": "cray"}, MissingFile, "neither built in"),
        ({"colour": 3}, UsageError, "no option 'colour'"),
        ({"changes": {"prompt_tokens": "abc"}}, UsageError, "prompt_tokens=abc: a whole number"),
        ({"changes": {"batch": "abc"}}, UsageError, "batch=abc: a whole number"),
        ({"changes": {"engine.neural.setup": "1000000 s"}}, DieletError, "longer than 1 s"),
        ({"threads": -1}, UsageError, "-1 threads: must be from 1 to 64"),
        ({"threads": 0, "device": "host"}, UsageError, "0 threads: must be from 1 to 64"),
        ({"changes": {"threads": 65}, "device": "host"}, UsageError, "65 threads"),
    ):
        with pytest.raises(error, match=complaint):
            simulate(LLAMA, **given)
    with pytest.raises(MissingFile):
        simulate("/nonexistent/config.json")
    slow = {"engine.neural.peak.bf16": "1 OP/s", "layers": 1}
    with pytest.raises(Unsupported, match="one after the other"):
        assert simulate(QWEN_17B, changes=slow).tpot_s


# The command line.


def test_simulate_json(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", str(QWEN_17B), "--new-tokens", "2", "--max-seq-len", "512", "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS and found["device"] == "rebel100"
    assert main(argv[:-1]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_simulate_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", str(QWEN_17B), "--new-tokens", "2", "--max-seq-len", "512"]
    argv += ["--set", "layers=1,2", "--set", "batch=1,2"]
    files = [str(tmp_path / name) for name in ("out.csv", "out.svg")]
    assert main([*argv, "--csv", files[0], "--plot", files[1]]) == 0
    assert "batch" in capsys.readouterr().out
    assert Path(files[0]).read_text().count("\n") == 5
    assert Path(files[1]).read_text().startswith("<svg")
    assert main([*argv, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) == 4
    assert main(["simulate", str(QWEN_17B), "--plot", files[1]]) == 2
    assert main([*argv, "--plot", str(tmp_path / "out.png")]) == 2
    assert not (tmp_path / "out.png").exists()


def test_sensitivity(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["simulate", str(QWEN_17B), "--new-tokens", "2", "--max-seq-len", "512", "--set",
            "layers=1", "--sensitivity", "--json"]  # fmt: skip
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)["sensitivity"]
    figures = [row["figure"] for row in found]
    assert "engine.task_dma.setup" in figures and "memory.dram.bandwidth" not in figures
    assert "engine.neural_dma.slots" in figures
    for more in (["--csv", "x.csv"], ["--plot", "x.svg"], ["--set", "chiplets=1,2"]):
        assert main([*argv, *more]) == 2
        assert "--sensitivity varies the assumed figures itself" in capsys.readouterr().err


def test_a_figure_that_is_assumed_in_part_is_assumed() -> None:
    for name in ("atom", "atom-x4"):
        figures = {f.path: f for f in load_device(name).figures}
        assert figures["link.host.bandwidth"].assumed
        assert not figures["memory.dram.bandwidth"].assumed


def test_devices_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    assert "rebel100" in capsys.readouterr().out
    assert main(["devices", "rebel100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chiplets"] == 4 and found["assumed"] > 10
    assert all(value["source"] for value in found["values"])
    assert main(["devices", "atom", "--toml"]) == 0
    assert capsys.readouterr().out.startswith("# ATOM")
    assert main(["devices", "atom", "--calibrate"]) == 2
