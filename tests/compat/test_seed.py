"""The vendor's script, exactly as printed in its documentation, and its three ways of profiling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.compat.hub import COMMIT, QWEN3, SCRIPTS, execute, put_in_cache, traces, written
from tests.hub_server import read_folder, running

pytestmark = pytest.mark.network
SCRIPT = SCRIPTS / "profile_qwen3.py"
TEXT = SCRIPT.read_text()
PROMPT = "Give me a short introduction to large language models."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hf")
    put_in_cache(path, QWEN3, "qwen3")
    return path


def expected(home: Path) -> str:
    """What transformers itself prints."""
    snapshot = next((home / "hub").glob("*/snapshots/*"))
    tokenizer = AutoTokenizer.from_pretrained(snapshot)
    model = AutoModelForCausalLM.from_pretrained(snapshot, dtype=torch.float32)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


def without(text: str, line: str) -> str:
    assert line in text
    return text.replace(line, "")


ACTIVATE = "    rbln_activate_profiler=True,\n"
GENERATE = "output_sequence = model.generate(**inputs, max_new_tokens=4, do_sample=False)\n"


def test_the_script_is_as_it_is_printed() -> None:
    """No formatter has joined its lines."""
    assert f'inputs = tokenizer(\n    "{PROMPT}", return_tensors="pt"\n)\n' in TEXT


def test_the_script_verbatim(home: Path, tmp_path: Path) -> None:
    ended = execute(SCRIPT, home, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == expected(home) + "\n"
    assert ended.stdout.startswith(PROMPT)
    merged, *singles = traces(tmp_path)
    assert len(singles) == 4, "one prefill, three decode steps"
    assert merged.attributes["device"] == "rebel100"
    assert merged.attributes["device_clock"] == "modelled"
    assert merged.attributes["execution_count"] == 4
    tree = merged.tree()
    assert tree[0] == "Device 0 (rebel100, modelled)"
    groups = [line for line in tree if line.startswith("  ") and not line.startswith("   ")]
    assert groups == ["  Device Workload", "  Host", *(f"  Chiplet {n}" for n in range(4))]
    runs = [s.name for s in merged.slices if s.category == "Device Workload"]
    assert runs == [
        f"i{instance}_{sequence}_Device Workload_{workload}"
        for instance, sequence in ((0, 0), (1, 0), (1, 1), (1, 2))
        for workload in (0, 1)
    ]
    prefill = next(s for s in merged.slices if s.name == "i0_0_Device Workload_0")
    assert prefill.args["program"] == "prefill_512_kv512", "a Rebel100 takes chunks of 512"
    q_proj = "model.model.layers.0.self_attn.q_proj.weight"
    found = [s for s in singles[0].commands() if q_proj in s.name]
    places = sorted(singles[0].path(s.track).split("/")[1] for s in found)
    assert places == [f"Chiplet {n}" for n in range(4)]
    norms = [s for s in singles[0].commands() if "layers.0.pre_attention_layernorm" in s.name]
    assert {singles[0].path(s.track) for s in norms} == {
        "Device 0 (rebel100, modelled)/Chiplet 0/Task DMA"
    }


def test_the_script_fetches_the_model_from_a_hub(home: Path, tmp_path: Path) -> None:
    """With nothing in the cache, as on somebody's first day; the second run fetches nothing."""
    snapshot = next((home / "hub").glob("*/snapshots/*"))
    with running() as hub:
        hub.add(QWEN3, read_folder(snapshot), COMMIT)
        online = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        ended = execute(SCRIPT, tmp_path / "empty", tmp_path / "out", **online)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == expected(home) + "\n"
        sent = [one.name for one in hub.gets()]
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(sent)
        assert len(traces(tmp_path / "out")) == 5
        execute(SCRIPT, tmp_path / "empty", tmp_path / "again", **online)
        assert len(hub.gets("model.safetensors")) == 1
        assert len(hub.gets("tokenizer.json")) == 1, "transformers and dielet share the cache"


def test_the_environment_instead_of_the_argument(home: Path, tmp_path: Path) -> None:
    script = written(without(TEXT, ACTIVATE), tmp_path)
    ended = execute(script, home, tmp_path, RBLN_PROFILER="1")
    assert ended.returncode == 0, ended.stderr
    assert len(traces(tmp_path)) == 5
    again = execute(script, home, tmp_path / "off")
    assert again.returncode == 0 and again.stdout == ended.stdout
    assert not list((tmp_path / "off").iterdir()), "switched off, nothing is left"


def test_a_window_around_the_second_answer(home: Path, tmp_path: Path) -> None:
    """The window forgets what came before, and only what it wraps is in its folder."""
    window = (
        "from rebel.profiler import profile\n\n"
        'with profile(output_dir="./profile_out"):\n    ' + GENERATE
    )
    script = written(TEXT.replace(GENERATE, GENERATE + window), tmp_path)
    ended = execute(script, home, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(traces(tmp_path / "profile_out")) == 5
    assert not list(tmp_path.glob("*.pb"))


def test_start_and_done(home: Path, tmp_path: Path) -> None:
    lines = (
        "import rebel\nrebel.profiler.start()\n" + GENERATE + "rebel.profiler.start()\n" + GENERATE
        + "files = rebel.profiler.done()\nprint(len(files))\nrebel.profiler.done()\n"
    )  # fmt: skip
    script = written(TEXT.replace(GENERATE, lines), tmp_path)
    ended = execute(script, home, tmp_path)
    assert ended.stdout == "5\n", ended.stderr
    assert len(traces(tmp_path)) == 5, "a second start() begins anew"
    assert ended.returncode == 2 and "done() without start()" in ended.stderr.splitlines()[-1]


def test_a_window_without_the_profiler_says_what_a_board_needs(home: Path, tmp_path: Path) -> None:
    window = 'from rebel.profiler import profile\nwith profile("out"):\n    ' + GENERATE
    script = written(without(TEXT, ACTIVATE).replace(GENERATE, window), tmp_path)
    ended = execute(script, home, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert len(traces(tmp_path / "out")) == 5
    assert "rbln_activate_profiler=True" in ended.stderr
    off = TEXT.replace("profiler=True", "profiler=False").replace(GENERATE, window)
    ended = execute(written(off, tmp_path / "b"), home, tmp_path / "b")
    assert ended.returncode == 0, ended.stderr
    assert not list((tmp_path / "b" / "out").iterdir()), "never, when it is switched off"
