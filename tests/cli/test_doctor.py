"""What `dielet doctor` finds: this machine, the caches, and what of them is damaged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dielet.codegen import TARGETS
from dielet.codegen import cache as code_cache
from dielet.image import CompileOptions, compile_model
from tests.checkpoint.make import gguf_file, hugging_face, spec, weights


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_ENDPOINT"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "dielet"


def test_it_is_quick(dielet, root):
    begin = time.monotonic()
    assert dielet("doctor", "--json").code == 0
    assert time.monotonic() - begin < 10


def test_what_the_processor_has_and_lacks(dielet, root, monkeypatch):
    from dielet.codegen import processor
    from dielet.codegen.processor import Processor

    found = dielet("doctor", "--json").json["processor"]
    assert found["target"] == found["runs"][0] and set(found["runs"]) <= set(found["targets"])
    assert set(TARGETS[found["target"]].needs) <= set(found["features"])
    assert "plain" in found["runs"]
    old = Processor("x86_64-unknown-linux-gnu", "haswell", "+avx2,+fma,+f16c,-avx512f")
    monkeypatch.setattr(processor, "_ask", lambda: old)
    found = dielet("doctor", "--json").json["processor"]
    assert found["target"] == "avx2" and found["runs"] == ["avx2", "plain"]
    assert found["features"] == ["f16c", "fma", "avx2"]
    assert "avx512f (for avx512)" in found["lacks"]
    assert not any("neon" in each for each in found["lacks"]), "nobody could add that"


def test_nothing_is_damaged_in_a_cache_in_use(dielet, root, tmp_path):
    one = spec()
    source = hugging_face(tmp_path / "hf", one, weights(one))
    compile_model(source, root / "models" / "m-1", CompileOptions(max_seq_len=64))
    code_cache.write(root / "native", "a" * 64, b"code")
    (root / "downloads" / "x").mkdir(parents=True)
    gguf_file(root / "downloads" / "x" / "m.gguf", one, weights(one))
    found = dielet("doctor", "--json").json
    assert found["damaged"] == []
    assert found["caches"]["directory"] == str(root) and found["caches"]["free"] > 0
    lines = dielet("doctor").out.splitlines()
    for name in ("models", "native", "downloads"):
        assert any(line.split()[:1] == [name] and line.endswith("B") for line in lines), name
        files = [path for path in (root / name).rglob("*") if path.is_file()]
        assert found["caches"][name] == sum(path.stat().st_size for path in files) > 0


def test_what_is_damaged_is_named_with_the_reason(dielet, root, tmp_path):
    one = spec()
    source = hugging_face(tmp_path / "hf", one, weights(one))
    for name in ("short", "gone", "json"):
        compile_model(source, root / "models" / name, CompileOptions(max_seq_len=64))
    image = root / "models" / "short" / "decoder_model_fixed.img"
    nbytes = image.stat().st_size
    with image.open("rb+") as file:
        file.truncate(nbytes - 1)
    (root / "models" / "gone" / "decoder_model_fixed.img").unlink()
    (root / "models" / "json" / "manifest.json").write_bytes(b"{")
    (root / "models" / "empty").mkdir()
    code_cache.write(root / "native", "a" * 64, b"code")
    (root / "native" / f"{'a' * 64}.o").write_bytes(b"other")
    (root / "downloads" / "x").mkdir(parents=True)
    (root / "downloads" / "x" / "m.gguf").write_bytes(b"GGUF")
    (root / "devices").mkdir()
    (root / "devices" / "host.toml").write_text("name = 1")
    spoken = dielet("doctor", "--json")
    assert spoken.code == 0, "caches are made again: nothing that keeps anybody from working"
    reasons = {
        str(Path(one["path"]).relative_to(root)): one["reason"] for one in spoken.json["damaged"]
    }
    assert set(reasons) == {
        "models/short", "models/gone", "models/json", "models/empty", "downloads/x",
        f"native/{'a' * 64}.o", "devices/host.toml",
    }  # fmt: skip
    assert reasons["models/short"] == (
        f"decoder_model_fixed.img has {nbytes - 1:,} bytes, {nbytes:,} are expected"
    )
    assert reasons["models/gone"].startswith("decoder_model_fixed.img is missing")
    assert reasons[f"native/{'a' * 64}.o"] == "its hash is another"
    assert all("\n" not in reason for reason in reasons.values())
    line = f"damaged: {root}/models/gone: decoder_model_fixed.img is missing"
    spoken = dielet("doctor").out
    assert line in spoken and spoken.splitlines()[-1] == "ready, but for what is damaged (7)."


def test_a_cache_that_cannot_be_made_is_a_problem(dielet, root, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")  # no directory, to the superuser neither
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    spoken = dielet("doctor")
    assert spoken.code == 1 and "ready" not in spoken.out
    assert f"{tmp_path}/file/dielet cannot be written (Not a directory)" in spoken.out
    assert "RuntimeWarning" not in spoken.out + spoken.err


def test_a_cache_that_does_not_exist_yet(dielet, root):
    found = dielet("doctor", "--json").json
    assert found["caches"]["directory"] == str(root) and found["damaged"] == []
    assert found["hub"]["cached_models"] == found["hub"]["size"] == 0
    assert found["hub"]["token"] == "none"
    assert found["hub"]["endpoint"] == "https://huggingface.co"
