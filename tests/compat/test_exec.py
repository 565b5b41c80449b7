"""`dielet exec`: what a script sees, how it ends, and when the vendor's packages are there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dielet.cli import optimum
from dielet.cli.console import Console
from dielet.cli.exits import finish
from dielet.image import read_manifest
from tests.compat.hub import dielet, execute, written
from tests.compat.tiny import words
from tests.tiny import make


@pytest.fixture
def run(tmp_path: Path):
    def call(script: str, *words: str, **env: str):
        return execute(written(script, tmp_path), tmp_path / "hf", tmp_path, *words, **env)

    return call


def last(ended) -> str:
    return str(ended.stderr.rstrip().splitlines()[-1])


def test_a_script_sees_what_python_would_show_it(run, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'")
    ended = run(
        "import sys, beside\nprint(__name__, beside.name, sys.argv[1:], sys.path[0])",
        "-x",
        "--json",
    )
    assert ended.stdout == f"__main__ beside ['-x', '--json'] {tmp_path}\n"
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('that is all')", 1, "that is all"),
        ("def f():\n    raise KeyError('x')\nf()", 1, "KeyError: 'x'"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("import sys; sys.exit()", 0, ""),
    ],
)
def test_how_it_ends(run, script: str, code: int, line: str) -> None:
    ended = run(script)
    assert ended.returncode == code
    assert (last(ended) if ended.stderr.strip() else "").endswith(line)
    assert "runpy" not in ended.stderr


def test_one_line_for_our_own_errors(run) -> None:
    ended = run(
        "from optimum.rbln import RBLNQwen3ForCausalLM as M\nM.from_pretrained('x', rbln_a=1)"
    )
    assert ended.returncode == 2
    assert last(ended).startswith("dielet exec: error: unexpected arguments: rbln_a")
    assert "Traceback" not in ended.stderr


def test_modules_of_the_vendor(run) -> None:
    ended = run(
        "import optimum.rbln, rebel\n"
        "from optimum.rbln import (RBLNAutoModelForCausalLM, RBLNLlamaForCausalLM,\n"
        "    RBLNMistralForCausalLM, RBLNQwen2ForCausalLM, RBLNQwen3ForCausalLM,\n"
        "    RBLNQwen3ForCausalLMConfig)\n"
        "from rebel.profiler import profile, start, done\n"
        "from rebel import RBLNRuntimeError\n"
        "assert issubclass(RBLNRuntimeError, RuntimeError)\n"
        "from importlib.util import find_spec\n"
        "assert find_spec('rebel.core') is None and find_spec('rebel.profiler') is not None\n"
        "assert not hasattr(optimum.rbln, 'RBLNGemma2ForCausalLM')\n"
        "try:\n    from optimum.rbln import RBLNQwen3Model\nexcept ImportError:\n    pass\n"
        "print(optimum.rbln.__version__, rebel.profiler.profile is profile)\n"
        "import optimum.habana"
    )
    assert ended.stdout == "0.12.0 True\n"
    assert last(ended).startswith("ModuleNotFoundError"), ended.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "from optimum.rbln import RBLNGemma2ForCausalLM",
            "RBLNGemma2ForCausalLM: dielet has no such family; it has RBLNQwen3ForCausalLM",
        ),
        ("from optimum.rbln import RBLNAutoConfig", "has no RBLNAutoConfig here; it has RBLNQwen3"),
        ("from rebel import Tensor", "rebel has no Tensor here; it has compile_from_torch"),
        ("from rebel import core", "rebel has no core here"),
        ("import rebel.core", "ModuleNotFoundError: No module named 'rebel.core'"),
        (
            "from optimum.rbln import RBLNGemma3Model",
            "RBLNGemma3Model gives hidden states, and dielet's programs give logits: use "
            "RBLNGemma3ForCausalLM",
        ),
        ("from optimum.rbln import RBLNGPT2LMHeadModel", "dielet has no such family"),
        ("from optimum.rbln import RBLNGemma2ModelConfig", "dielet has no such family"),
        (
            "from optimum.rbln import RBLNGemma3ForConditionalGeneration as M",
            "has no RBLNGemma3ForConditionalGeneration here; it has",
        ),
        ("import optimum.rbln as o; o.RBLNGemma2ForCausalLM", "dielet has no such family"),
        ("import optimum.rbln as o; o.RBLNBertModel", "it has RBLNQwen3ForCausalLMConfig"),
        (
            "import rebel; rebel.compile_from_torch(None)",
            "RBLNAutoModelForCausalLM.from_pretrained",
        ),
        ("import rebel; rebel.Runtime('m.rbln')", "rebel.Runtime is for any torch module"),
    ],
)
def test_what_is_not_here(run, line: str, message: str) -> None:
    ended = run(line)
    assert ended.returncode != 0
    assert message in last(ended)


def test_nothing_is_replaced_without_exec() -> None:
    with pytest.raises(ImportError):
        import optimum.rbln  # noqa: F401


def test_refused_where_the_real_ones_are_installed(run, tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "rebel").mkdir(parents=True)
    (real / "rebel" / "__init__.py").write_text("real = True")
    (real / "optimum" / "rbln").mkdir(parents=True)
    (real / "optimum" / "__init__.py").write_text("name = 'the real optimum'")
    (real / "optimum" / "rbln" / "__init__.py").write_text("real = True")
    import os

    path = os.pathsep.join(filter(None, (str(real), os.environ.get("PYTHONPATH"))))
    script = "import optimum, optimum.rbln, rebel\nprint(optimum.name, hasattr(rebel, 'real'))"
    refused = run(script, PYTHONPATH=path)
    assert refused.returncode == 2
    assert "rebel (" in last(refused) and "--override" in last(refused)
    assert "optimum.rbln (" in last(refused)
    overridden = dielet(
        "exec", "--override", str(tmp_path / "script.py"), home=tmp_path, cwd=tmp_path,
        PYTHONPATH=path,
    )  # fmt: skip
    assert overridden.stdout == "the real optimum False\n", overridden.stderr


def test_no_such_script(tmp_path: Path) -> None:
    ended = execute("nothing.py", tmp_path, tmp_path)
    assert ended.returncode == 1 and "nothing.py is no file" in last(ended)


def test_json_is_one_object(run, tmp_path: Path) -> None:
    path = written("print('hello')", tmp_path)
    ended = dielet("exec", "--json", str(path), home=tmp_path, cwd=tmp_path)
    assert json.loads(ended.stdout) == {"script": str(path), "exit_code": 0}
    assert "hello" in ended.stderr


def test_a_wrong_switch(run) -> None:
    ended = run(
        "from dielet.compat.rbln_tracing import switched_on\nswitched_on()", RBLN_PROFILER="maybe"
    )
    assert "RBLN_PROFILER is 'maybe'" in last(ended)


# 3.7 the command-line tool


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tool") / "qwen3"
    make(path, "qwen3", num_attention_heads=8, num_key_value_heads=4)
    words().save_pretrained(path)
    return path


@dataclass
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def tool(tmp_path: Path, capsys, monkeypatch):
    """The tool in this process; only the first test goes through `dielet exec`."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Ended:
        capsys.readouterr()
        try:
            code = finish("it", Console(), lambda: optimum.main([str(word) for word in words]))
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, *capsys.readouterr())

    return call


def test_the_tool_compiles(tool, source: Path, tmp_path: Path) -> None:
    ended = dielet(
        "exec", "optimum-rbln-cli", "--model-id", str(source), "--max-seq-len", "2048",
        "--kvcache-partition-len=1024", "--batch-size", "2", "--decoder-batch-sizes", "[1, 2]",
        "--no-style", home=tmp_path / "hf", cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    out = tmp_path / "rbln_out"
    config = json.loads((out / "rbln_config.json").read_text())
    assert config["decoder_batch_sizes"] == [2, 1] and config["attn_impl"] == "flash_attn"
    assert (out / "decoder_batch_2.rbln").is_file()
    assert tool("--model-id", out, "--get-kvcache-num-blocks").stdout == "4\n"
    assert tool("-m", out, "--set-kvcache-num-blocks", 3).stdout == "3\n"
    assert tool("-m", out, "--get-kvcache-num-blocks").stdout == "3\n"
    assert tool("-m", out, "--set-kvcache-num-blocks", 0).stdout == "4\n", "as many as fit"
    assert tool("-m", out, "--set-kvcache-num-blocks", 3).stdout == "3\n"
    assert tool("-m", out, "--set-memory-budget", "80%").stdout == "4\n"
    none = tool("-m", out, "--set-memory-budget", "")
    assert none.returncode == 2 and "memory_budget is ''" in last(none)
    few = tool("-m", out, "--set-kvcache-num-blocks", 1)
    assert few.returncode == 2 and "alone needs 2" in last(few)
    shown = tool("-m", out, "--show-rbln-config")
    assert json.loads(shown.stdout)["cls_name"] == "RBLNQwen3ForCausalLM"


def test_the_tool_informs(tool, source: Path) -> None:
    assert "RBLNQwen3ForCausalLM" in tool("--list-classes").stdout.splitlines()
    assert tool("--version").stdout == "0.12.0\n"
    assert "--num-devices 4" in tool("--examples").stdout
    assert json.loads(tool("-m", source, "--show-rbln-config").stdout)["batch_size"] == 1


def test_the_tool_hands_hugging_faces_options_on(tool, source: Path, tmp_path: Path) -> None:
    words_ = ("--hf-trust-remote-code", "--hf-num-hidden-layers", 1, "--hf-dtype", "bfloat16")
    ended = tool("-m", source, "-o", tmp_path / "one", "--max-seq-len", 64, *words_)
    assert ended.returncode == 0, ended.stderr
    assert read_manifest(tmp_path / "one").spec.layers == 1


def test_the_tool_keeps_texts_as_they_are(tool, source: Path, tmp_path: Path, monkeypatch) -> None:
    seen: dict[str, object] = {}
    locate = optimum.directories.locate
    monkeypatch.setattr(
        optimum.directories, "locate", lambda m, hub: seen.update(hub) or locate(source, {})
    )
    words_ = (
        "--hf-revision", "1234567", "--hf-cache-dir=1e5", "--hf-subfolder", "null",
        "--hf-token", "007", "--hf-force-download",
    )  # fmt: skip
    assert tool("-m", "a/b", "--show-rbln-config", *words_).returncode == 0
    assert seen == {
        "revision": "1234567", "cache_dir": "1e5", "subfolder": "null", "token": "007",
        "force_download": True,
    }  # fmt: skip
    tool("-m", "a/b", "--show-rbln-config", "--hf-token=false")
    assert seen["token"] is False


def test_the_tool_refuses(tool, source: Path) -> None:
    for words_, code, message in (
        ((), 2, "--model-id is needed"),
        (("-m", source, "--batch-sise", 1), 2, "did you mean batch_size"),
        (("-m", source, "--hf-revision"), 2, "--hf-revision needs a value"),
        (("-m", source, "--hf-branch", "x"), 2, "--hf-branch is unknown"),
        (("-m", source, "extra"), 2, "unexpected argument 'extra'"),
        (("-m", source, "--class", "RBLNBert"), 2, "--class RBLNBert is unknown"),
        (("-m", source, "--get-kvcache-num-blocks"), 2, "is not compiled yet"),
        (("-m", "no/where", "--hf-local-files-only"), 1, "no/where"),
    ):
        ended = tool(*words_)
        assert (ended.returncode, message in last(ended)) == (code, True), (words_, ended.stderr)
