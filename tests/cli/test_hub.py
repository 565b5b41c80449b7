"""Commands on models that are named by their hub id."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from dielet.checkpoint.hub_progress import transfer
from dielet.checkpoint.hub_settings import hub_settings
from dielet.compat import directories
from dielet.errors import MissingFile, UsageError
from tests.checkpoint.make import gguf_file, hugging_face, spec, weights
from tests.generate.fake import byte_level_tokenizer
from tests.hub_server import COMMIT, Hub, read_folder, running

NAME = "some/model"
OTHER = "f" * 40


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with a model whose tag v1 has one more layer, and nothing in the caches."""
    for variable in ("HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        for commit, one in ((OTHER, spec(layers=3)), (COMMIT, spec())):
            folder = hugging_face(tmp_path / commit, one, weights(one))
            server.add(NAME, read_folder(folder), commit)
        server.models[NAME].refs["v1"] = OTHER
        yield server


def test_simulate_asks_for_no_weights(dielet, hub: Hub):
    spoken = dielet("simulate", NAME, "--prompt-tokens", 8, "--new-tokens", 2, "--json")
    assert spoken.code == 0 and spoken.json["decode_tok_s"] > 0
    assert [one.name for one in hub.gets()] == ["config.json"]


def test_compile_by_id_and_revision(dielet, hub: Hub, tmp_path: Path):
    command = ("compile", NAME, "--max-seq-len", 64, "--dry-run", "--json")
    assert layers_of(dielet(*command)) == 2
    assert layers_of(dielet(*command, "--revision", "v1")) == 3
    assert layers_of(dielet("compile", f"{NAME}@v1", *command[2:])) == 3
    assert layers_of(dielet(*command, "--revision", OTHER)) == 3


def layers_of(spoken) -> float:
    """By the cache, which grows with them: keys and values of 2 heads of 32, in bf16."""
    assert spoken.code == 0, spoken.err
    return spoken.json["memory"]["kv"] / (64 * 2 * 2 * 32 * 2)


def test_run_by_id_and_again_without_a_network(dielet, hub: Hub, tmp_path: Path, monkeypatch):
    tokenizer = byte_level_tokenizer()
    one = spec(vocab=tokenizer.get_vocab_size())
    files = read_folder(hugging_face(tmp_path / "made", one, weights(one)))
    hub.add("some/talker", {**files, "tokenizer.json": tokenizer.to_str().encode()})
    command = ("run", "some/talker", "-p", "hello", "--raw", "--max-new-tokens", 4, "--json")
    first = dielet(*command)
    assert first.code == 0 and len(first.json["tokens"]) == 4, first.err
    assert {one.name for one in hub.gets()} == {*files, "tokenizer.json"}
    hub.models.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = len(hub.seen)
    assert dielet(*command).json["tokens"] == first.json["tokens"]
    assert len(hub.seen) == before


def test_a_revision_of_what_is_here_is_a_mistake(dielet, hub: Hub, tmp_path: Path):
    spoken = dielet("compile", tmp_path / COMMIT, "-o", tmp_path / "m", "--revision", "v1")
    assert spoken.code == 2 and "is here, not on the hub; leave it out" in spoken.err
    spoken = dielet("run", f"{NAME}@v1", "-p", "hi", "--revision", "v2")
    assert spoken.code == 2 and f"{NAME}@v1 names one already; leave it out" in spoken.err
    spoken = dielet("simulate", NAME, "--revision", "../x")
    assert spoken.code == 2 and "'../x' is no revision; give a branch" in spoken.err
    assert not hub.seen


def test_what_the_hub_refuses_is_one_line_and_exit_code_1(dielet, hub: Hub):
    for words in (("compile", "no/model", "-o", "x"), ("run", "no/model", "-p", "hi")):
        spoken = dielet(*words)
        assert spoken.code == 1 and spoken.err.count("\n") == 1
        assert "error: the hub has no model no/model, or it is private; check the" in spoken.err


def test_arguments_of_from_pretrained(hub: Hub, tmp_path: Path):
    with pytest.raises(MissingFile, match="only the cache was to be looked in"):
        directories.locate(NAME, {"local_files_only": True})
    path = directories.locate(NAME, {"revision": "v1", "cache_dir": str(tmp_path / "own")})
    assert path == tmp_path / "own" / "models--some--model" / "snapshots" / OTHER
    assert directories.locate(NAME, {"revision": None}) == NAME, "as the command line does"
    assert directories.locate(path, {"revision": "v1"}) == path, "what is here has no revision"
    with pytest.raises(UsageError, match="is no revision"):
        directories.locate(NAME, {"revision": "../x"})
    with pytest.raises(UsageError, match="is no folder of a repository"):
        directories.locate(NAME, {"subfolder": "../x"})
    hub.models[NAME].access = {"hf_right"}
    with pytest.raises(MissingFile, match="or it is private"):
        directories.locate(NAME, {"force_download": True})
    directories.locate(NAME, {"force_download": True, "token": "hf_right"})


def test_a_token_of_the_environment_can_be_left_out(hub: Hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    directories.locate(NAME, {"token": False})
    assert not any("Authorization" in one.headers for one in hub.seen)
    directories.locate(NAME, {"token": True, "force_download": True})
    assert hub.seen[-1].headers.get("Authorization") is None, "at the store"
    assert any(one.headers.get("Authorization") == "Bearer hf_mine" for one in hub.seen)
    with pytest.raises(UsageError, match="the token of the argument token has characters"):
        directories.locate(NAME, {"token": "a b"})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_download_has_a_bar_on_a_terminal_unless_quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)

    def drawn(total: int) -> str:
        monkeypatch.setattr(sys, "stderr", Terminal())
        with transfer("some/[model]", total) as advance:
            advance(total // 2)
            advance(total // 2)
        return sys.stderr.getvalue()

    assert "some/[model]" in drawn(20_000_000) and "20.0" in drawn(20_000_000)
    assert drawn(1_000_000) == ""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    assert drawn(20_000_000) == ""


def test_quiet_is_for_downloads_too(dielet, monkeypatch):
    import os

    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    dielet("devices")
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "0"
    dielet("devices", "-q")
    assert os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"


def test_doctor_tells_of_the_hub_and_never_the_token(dielet, hub: Hub, monkeypatch, tmp_path):
    from dielet.checkpoint import open_checkpoint

    one = spec()
    hub.add("some/gguf", {"m.gguf": gguf_file(tmp_path / "m.gguf", one, weights(one)).read_bytes()})
    open_checkpoint(NAME)
    open_checkpoint("some/gguf/m.gguf")
    folder = hub_settings().cache / "models--some--model"
    (folder / "blobs" / "abc.incomplete").write_bytes(bytes(1000))
    monkeypatch.setenv("HF_TOKEN", "hf_mySecret")
    spoken = dielet("doctor", "--json")
    assert spoken.code == 0 and "mySecret" not in spoken.out
    found = spoken.json["hub"]
    size = sum(path.stat().st_size for path in folder.parent.rglob("*") if path.is_file()
               and not path.is_symlink())  # fmt: skip
    assert found == {
        "endpoint": hub.address, "cache": str(folder.parent), "cached_models": 2, "size": size,
        "unfinished": 1, "unfinished_size": 1000, "offline": False, "token": "of HF_TOKEN",
    }  # fmt: skip
    assert spoken.json["damaged"] == []
    other = folder.parent / "models--a--b" / "snapshots" / COMMIT / "of-another-version.gguf"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"GGUF" + (99).to_bytes(4, "little") + bytes(16))
    assert dielet("doctor", "--json").json["damaged"] == [], "not for us, but whole"
    snapshot = folder / "snapshots" / COMMIT
    (snapshot / "model.safetensors").resolve().write_bytes(b"x" * 100)
    (snapshot / "config.json").resolve().unlink()
    gguf = next(folder.parent.glob("models--some--gguf/snapshots/*/m.gguf"))
    gguf.resolve().write_bytes(b"GGUF")
    damaged = dielet("doctor", "--json").json["damaged"]
    assert {one["path"] for one in damaged} == {
        str(gguf), str(snapshot / "model.safetensors"), str(snapshot / "config.json")
    }  # fmt: skip
    assert {one["remedy"] for one in damaged} == {
        f"delete {folder}, it is fetched again", f"delete {gguf.parents[2]}, it is fetched again"
    }  # fmt: skip
    spoken = dielet("doctor")
    assert spoken.code == 0 and f"damaged: {snapshot / 'config.json'}: it leads to" in spoken.out
    monkeypatch.setenv("HF_TOKEN", "hf_my Secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spoken = dielet("doctor")
    assert spoken.code == 1 and "problem: the token of HF_TOKEN has characters" in spoken.out
    assert "Secret" not in spoken.out
