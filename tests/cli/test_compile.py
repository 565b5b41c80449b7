"""`compile`, `explain`, `run SRC` and `demo` on real programs: nothing is replaced here."""

import json
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import dielet as package
from dielet.cli.console import Console
from tests import tiny
from tests.generate.fake import TEMPLATE, byte_level_tokenizer


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny random Qwen3 as a Hugging Face directory, with a tokenizer and a template."""
    folder = tmp_path_factory.mktemp("source") / "tiny-qwen3"
    tiny.make(folder, "qwen3", vocab_size=416, spread=4.0)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def compiled(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("compiled") / "model"
    package.compile(source, out, weights="bf16", max_seq_len=256, chiplets=2).close()
    return out


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """A user's cache that is this test's own, but for native code, which is slow to make."""
    from dielet import paths

    native = paths.cache_dir("native")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = paths.cache_dir("native")
    own.parent.mkdir(parents=True)
    if native.is_dir():
        own.symlink_to(native, target_is_directory=True)
    return own.parent


def test_compile_says_what_it_made_and_what_to_do_next(dielet, source, tmp_path):
    out = tmp_path / "out"
    spoken = dielet(
        "compile", source, "-o", out, "--weights", "int8", "--group", "32",
        "--chiplets", 3, "--kv-ladder", "64,128", "--layers", 1, "--prefill-chunk", 32,
        "--kv", "int8",
    )  # fmt: skip
    assert spoken.code == 0
    assert f'dielet run {out} -p "who are you"' in spoken.out
    assert "compile: 100 %" in spoken.err
    manifest = json.loads((out / "manifest.json").read_bytes())
    assert (manifest["chiplets"], manifest["max_seq_len"]) == (3, 128)
    assert manifest["spec"]["layers"] == 1
    assert manifest["kv_format"] == "int8" and "cache int8" in spoken.out
    assert "kv=int8" in dielet("explain", out, "--program", "decode_1_kv64").out
    with package.load(out) as model:
        assert len(model.generate([1, 2, 3], max_new_tokens=5).tokens) == 5


def test_compile_with_json_is_one_object(dielet, source, tmp_path):
    found = dielet("compile", source, "-o", tmp_path / "out", "--json", "-q").json
    assert found["directory"] == str(tmp_path / "out")
    assert "manifest.json" not in found["bytes"] and found["bytes"]["decoder_model_fixed.img"] > 0
    assert found["seconds"] > 0 and found["memory"]["kv"] > 0
    assert "head_1" in found["programs"]


def test_a_dry_run_writes_nothing(dielet, source, tmp_path):
    spoken = dielet("compile", source, "-o", tmp_path / "out", "--dry-run", "--json")
    found = spoken.json
    assert found["dry_run"] and found["bytes"]["token_embedding_weight.npy"] > 0
    assert found["memory"]["kv"] > 0 and found["seconds"] >= 0
    int8 = dielet("compile", source, "--dry-run", "--json", "--kv", "int8").json
    assert (found["kv"], int8["kv"]) == ("bf16", "int8")
    assert 0.5 < int8["memory"]["kv"] / found["memory"]["kv"] < 0.57
    assert list(tmp_path.iterdir()) == []
    shown = dielet("compile", source, "--dry-run").out
    assert "memory when run" in shown and "time to compile" in shown


def test_a_dry_run_is_right_about_the_sizes(dielet, source, compiled):
    expected = dielet(
        "compile", source, "--dry-run", "--json", "--weights", "bf16", "--max-seq-len", 256,
        "--chiplets", 2,
    ).json  # fmt: skip
    manifest = json.loads((compiled / "manifest.json").read_bytes())
    assert expected["memory"] == manifest["memory"]
    for name, nbytes in expected["bytes"].items():
        real = sum(manifest["files"][part]["nbytes"] for part in name.split(" and "))
        assert nbytes <= real
        if name.endswith(".npy"):
            assert real - nbytes < 1 << 12  # only the headers


def test_random_weights_need_only_a_config(dielet, source, tmp_path):
    config = tmp_path / "config.json"
    config.write_bytes((source / "config.json").read_bytes())
    out = tmp_path / "out"
    assert dielet("compile", config, "-o", out, "--random-weights", 1, "-q").code == 0
    with package.load(out) as model:
        assert len(model.generate([1, 2, 3], max_new_tokens=5).tokens) == 5
    spoken = dielet("run", out, "-p", "hi")
    assert spoken.code == 2 and "this model has no tokenizer.json" in spoken.err


def test_options_are_refused_before_anything_is_said_to_be_done(dielet, source, tmp_path):
    spoken = dielet("compile", source, "-o", tmp_path / "out", "--kv", "int4")
    assert spoken.code == 2 and "--kv" in spoken.err and "bf16" in spoken.err
    spoken = dielet("compile", source, "-o", tmp_path / "out", "--max-seq-len", 1 << 20)
    assert spoken.code == 2 and spoken.err.count("\n") == 1
    assert "compiling" not in spoken.err and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["a model", "an empty directory", "nothing"])
def test_a_link_is_followed_and_stays(dielet, source, compiled, tmp_path, there):
    link, real = tmp_path / "link", tmp_path / "real"
    link.symlink_to("real")
    if there == "a model":
        shutil.copytree(compiled, real)
    elif there == "an empty directory":
        real.mkdir()
    assert dielet("compile", source, "-o", link, "--layers", 1, "-q").code == 0
    assert link.is_symlink() and json.loads((real / "manifest.json").read_bytes())["spec"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    with package.compile(source, link, layers=1):
        assert link.is_symlink() and real.is_dir()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"model": {"type": "?"}}', "tokenizer.json: not a usable tokenizer"),
        ("chat_template.jinja", "{% if %}", "chat_template.jinja: line 1: not a valid chat temp"),
        ("chat_template.jinja", "{% break %}", "chat_template.jinja: not a valid chat template"),
        ("generation_config.json", '{"top_p": 2}', "generation_config.json: top_p is 2"),
    ],
)
def test_what_could_not_be_run_is_not_compiled(dielet, source, tmp_path, name, content, message):
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (broken / name).write_text(content)
    for command in (["-o", tmp_path / "out"], ["--dry-run"]):
        spoken = dielet("compile", broken, *command)
        assert spoken.code == 1 and message in spoken.err and str(broken) in spoken.err
        assert spoken.err.count("\n") == 1
    with pytest.raises(package.errors.DamagedFile, match=name):
        package.compile(broken, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_compilation_that_is_ended_leaves_nothing(dielet, source, tmp_path, monkeypatch, number):
    @contextmanager
    def progress(self, label):
        def report(done, total, name):
            assert list(tmp_path.iterdir()) != []
            signal.raise_signal(number)

        yield report

    monkeypatch.setattr(Console, "progress", progress)
    spoken = dielet("compile", source, "-o", tmp_path / "out")
    assert spoken.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_the_api_refuses_an_unknown_option_with_the_nearest(source, tmp_path):
    with pytest.raises(package.errors.UsageError, match="did you mean 'chiplets'"):
        package.compile(source, tmp_path / "out", chiplet=2)


def test_explain_lists_the_commands(dielet, compiled):
    spoken = dielet("explain", compiled)
    assert spoken.code == 0
    assert "program decode_1_kv256" in spoken.out
    assert "linear" in spoken.out and "wait s" in spoken.out
    one = dielet("explain", compiled, "--program", "prefill_128_kv256", "--chiplet", 1).out
    assert " c1." in one and " c0." not in one
    assert dielet("explain", compiled, "--program", "head_1").code == 0


def test_explain_with_json_is_the_program(dielet, compiled):
    found = dielet("explain", compiled, "--json", "--chiplet", 1).json
    assert found["name"] == "decode_1_kv256" and found["chiplets"] == 2
    assert {command["chiplet"] for command in found["commands"]} == {1}
    assert {"kind", "operands", "waits", "signals"} <= set(found["commands"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--program", "decode_1_kv25"], "no program 'decode_1_kv25'; did you mean decode_1_kv256"),
        (["--program", "x"], "programs: prefill_128_kv256, decode_1_kv256, head_1"),
        (["--chiplet", 2], "chiplet is 2; decode_1_kv256 has chiplets 0 to 1"),
    ],
)
def test_explain_refuses_what_is_not_there(dielet, compiled, options, message):
    spoken = dielet("explain", compiled, *options)
    assert spoken.code == 2 and message in spoken.err


def test_run_compiles_a_checkpoint_into_the_cache_once(dielet, source, empty_cache):
    command = ["run", source, "-p", "hi", "--json", "--max-new-tokens", 12, "--temperature", 0]
    first = dielet(*command)
    assert first.code == 0 and "compiling" in first.err
    second = dielet(*command)
    assert "compiling" not in second.err
    (made,) = (empty_cache / "models").iterdir()
    assert made.name.startswith("tiny-qwen3-")
    assert second.json["tokens"] == first.json["tokens"]
    assert second.json["logits_sha256"] == first.json["logits_sha256"]

    image = made / "decoder_model_fixed.img"
    image.write_bytes(image.read_bytes()[:-100])
    third = dielet(*command)
    assert third.code == 0 and "is not usable" in third.err
    assert third.json["tokens"] == first.json["tokens"]

    config = source / "config.json"
    before = config.read_bytes()
    try:
        config.write_bytes(before.replace(b'"eos_token_id"', b'"unused"'))
        assert "compiling" in dielet(*command).err  # another checkpoint now
    finally:
        config.write_bytes(before)


@pytest.mark.parametrize("damage", ["no manifest", "a file", "a link to nothing"])
def test_the_cache_heals_itself(dielet, source, empty_cache, damage):
    command = ["run", source, "-p", "hi", "--json", "--max-new-tokens", 3, "--temperature", 0]
    first = dielet(*command)
    (made,) = (empty_cache / "models").iterdir()
    (made / "manifest.json").unlink()
    if damage != "no manifest":
        shutil.rmtree(made)
        made.write_text("") if damage == "a file" else made.symlink_to("nowhere")
    second = dielet(*command)
    assert second.code == 0 and "is no compiled model; making it anew" in second.err
    assert second.json["tokens"] == first.json["tokens"]
    assert list((empty_cache / "models").iterdir()) == [made] and not made.is_symlink()


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(dielet, source, empty_cache):
    (empty_cache / "models").write_text("")
    spoken = dielet("run", source, "-p", "hi")
    assert spoken.code == 1 and spoken.err.count("\n") == 1
    assert f"cannot write to the cache {empty_cache / 'models'}: " in spoken.err
    assert "set XDG_CACHE_HOME" in spoken.err


def test_the_host_is_the_runtime_that_generation_asks_for(compiled):
    """Chat reuse, chunks and rewinding on real programs: the same bits as computed afresh."""
    with package.load(compiled) as model:
        chat = package.Chat(model, max_new_tokens=6, temperature=0)
        for message in ("hello there", "and more, " * 8, "x"):
            stream = chat.ask(message)
            list(stream)
        prompt = model.encode(chat.messages[:-1], {})
        again = model.generate(prompt, max_new_tokens=6, temperature=0)
        assert again.tokens == stream.result.tokens
        assert again.receipt.logits_sha256 == stream.result.receipt.logits_sha256
        share = again.receipt.share_of_bandwidth
        assert share is not None and share > 0

        with pytest.raises(package.errors.CapacityError, match=r"257 tokens.* larger max_seq_len"):
            model.stream([1] * 257)
        full = model.generate(np.ones(256, np.int32))
        assert len(full.tokens) == 1 and full.finish_reason == "length"


@pytest.mark.network
def test_the_demo_talks(dielet, empty_cache, monkeypatch):
    from dielet import paths
    from tests import data

    monkeypatch.setattr(paths, "cache_dir", _with_downloads(paths.cache_dir, data.smollm2_gguf()))
    spoken = dielet("demo", "--json", "--max-new-tokens", 60)
    found = spoken.json
    assert spoken.code == 0
    assert "plants" in found["text"]
    assert found["chiplets"] == 4 and found["decode_tok_s"] > 0
    (trace,) = spoken.json["profile"]
    assert Path(trace).is_file()
    spoken = dielet("demo", "--max-new-tokens", 60)
    assert found["text"] in spoken.out and "tokens/s" in spoken.out
    assert "compiling" not in spoken.err and "Next:" in spoken.out
    shares = next(line for line in spoken.out.splitlines() if line.startswith("   prefill "))
    assert "decode" in shares and f"dielet analyze {Path(trace).parent}" in spoken.out


def _with_downloads(cache_dir, fetched):
    """The cache, but for downloads, which the tests keep in a place of their own."""

    def found(*parts):
        return fetched.parents[1] if parts == ("downloads",) else cache_dir(*parts)

    return found
