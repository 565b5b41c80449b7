"""What `rebel.profiler` leaves: runs of the host, in their order, with the device's times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dielet.compat import rbln_tracing, said
from dielet.compat.rbln_models import RBLNLlamaForCausalLM, RBLNQwen3ForCausalLM
from dielet.errors import DieletError, UsageError
from dielet.profiler import session as sessions
from dielet.simulator import simulate_program
from tests.compat.hub import traces
from tests.compat.test_transformers import GREEDY
from tests.compat.tiny import prompts, words
from tests.tiny import make

OPTIONS = {"rbln_max_seq_len": 128, "rbln_prefill_chunk_size": 64, "rbln_batch_size": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("models")
    found = []
    for kind, cls in (("qwen3", RBLNQwen3ForCausalLM), ("llama", RBLNLlamaForCausalLM)):
        make(folder / kind, kind, num_attention_heads=8, num_key_value_heads=4, eos_token_id=None)
        words().save_pretrained(folder / kind)
        found.append(cls.from_pretrained(folder / kind, True, **OPTIONS))
    yield found
    for model in found:
        model.close()


@pytest.fixture(autouse=True)
def nothing_left_running():
    said._said.clear()
    yield
    assert sessions._running is None and rbln_tracing._window is None


def workloads(trace) -> list:
    return [s for s in trace.slices if s.category == "Device Workload"]


def test_rows_of_a_batch(models, tmp_path: Path) -> None:
    """Prefill is one row at a time; a step of both is one run, of the decoder of that batch."""
    with rbln_tracing.profile(tmp_path) as window:
        models[0].generate(**prompts(2, 80), max_new_tokens=3, **GREEDY)
    merged, *singles = traces(tmp_path)
    assert len(singles) == 5 == len(window.files) - 1
    programs = [s.args["program"] for s in workloads(merged) if s.name.endswith("_0")]
    assert programs == [*["prefill_64_kv128"] * 3, *["decode_2_kv128"] * 2]
    names = [s.name.split("_Device")[0] for s in workloads(merged) if s.name.endswith("_0")]
    assert names == ["i0_0", "i0_1", "i0_2", "i2_0", "i2_1"]
    assert [s.args["valid"] for s in workloads(merged)][:1] == [64]


def test_times_are_the_devices(models, tmp_path: Path) -> None:
    """As long as the simulator says, one after the other, however slow this machine is."""
    model = models[0]
    with rbln_tracing.profile(tmp_path):
        model.generate(prompts(1, 20)["input_ids"].repeat(2, 1), max_new_tokens=2, **GREEDY)
        time.sleep(0.2)
        model.generate(prompts(2, 20)["input_ids"], max_new_tokens=2, **GREEDY)
    merged = traces(tmp_path)[0]
    assert merged.attributes["device_clock"] == "modelled"
    device = model.runtime.files.device()
    at = 0
    for piece in workloads(merged):
        program = model.runtime.files.program(piece.args["program"])
        at += device.launch
        assert piece.start == at // 1000
        at += simulate_program(program, device).duration
        assert abs(piece.end - at // 1000) <= 1
    assert merged.attributes["run_ns"] == at // 1000 < 100_000_000


def test_two_models_have_a_group_each(models, tmp_path: Path) -> None:
    with rbln_tracing.profile(tmp_path):
        for model in models:
            model.generate(**prompts(2, 10), max_new_tokens=2, **GREEDY)
    tree = traces(tmp_path)[0].tree()
    groups = [line.strip() for line in tree if "(rebel100, modelled)" in line]
    assert groups == [
        f"Device 0 (rebel100, modelled), model {n}: {kind}"
        for n, kind in ((1, "qwen3"), (2, "llama"))
    ]


def test_models_of_this_machine_are_measured(tmp_path: Path) -> None:
    folder = tmp_path / "qwen3"
    make(folder, "qwen3", eos_token_id=None)
    words().save_pretrained(folder)
    with (
        RBLNQwen3ForCausalLM.from_pretrained(folder, True, rbln_npu="host", **OPTIONS) as model,
        rbln_tracing.profile(tmp_path / "out"),
    ):
        model.generate(**prompts(2, 10), max_new_tokens=2, **GREEDY)
    merged = traces(tmp_path / "out")[0]
    assert merged.attributes["device_clock"] == "measured"
    assert merged.tree()[0] == "Device 0 (host, measured)"


def test_a_window_that_sees_nothing(tmp_path: Path, capsys) -> None:
    with rbln_tracing.profile(tmp_path) as window:
        pass
    assert window.files == [] and not list(tmp_path.iterdir())
    assert "nothing ran" in capsys.readouterr().err


def test_the_block_may_end_the_window_itself(models, tmp_path: Path) -> None:
    with rbln_tracing.profile(tmp_path):
        models[0].generate(**prompts(2, 10), max_new_tokens=1, **GREEDY)
        files = rbln_tracing.done()
    assert len(files) == 3
    with pytest.raises(UsageError, match="without start"):
        rbln_tracing.done()


def test_an_error_inside_a_window(models, tmp_path: Path) -> None:
    with pytest.raises(KeyError), rbln_tracing.profile(tmp_path):
        models[0].generate(**prompts(2, 10), max_new_tokens=1, **GREEDY)
        raise KeyError
    assert len(traces(tmp_path)) == 3, "what was recorded is written"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DieletError, match="cannot be made"):
        rbln_tracing.start(tmp_path / "file" / "x")


def test_a_process_window_makes_way_and_ends_with_it(models, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rbln_tracing.start()
    models[0].generate(**prompts(2, 10), max_new_tokens=1, **GREEDY)
    rbln_tracing.start("second")
    assert rbln_tracing.done() == []
    assert not list(tmp_path.glob("*.pb")), "what came before a start is forgotten"


def test_a_window_inside_of_another(models, tmp_path: Path, capsys) -> None:
    with rbln_tracing.profile(tmp_path / "outer"), rbln_tracing.profile(tmp_path / "inner"):
        models[0].generate(**prompts(2, 10), max_new_tokens=1, **GREEDY)
    assert len(traces(tmp_path / "inner")) == 3
    assert not (tmp_path / "outer").exists(), "no empty folder is left"
    assert "recorded until then is forgotten" in capsys.readouterr().err
