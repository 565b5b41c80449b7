"""What a user may name: paths of several kinds, hub ids, and what is said of the rest."""

import sys
from types import SimpleNamespace

import pytest

from dielet.checkpoint import open_checkpoint, open_config
from dielet.errors import MissingFile, Unsupported

from .make import gguf_file, hugging_face, spec, weights


@pytest.mark.parametrize("name", ["nothing", "./no/such/dir", "/no/such.gguf", "a/b/c", ""])
def test_what_is_not_there_is_named_with_what_could_be(name):
    if not name:
        with pytest.raises(MissingFile, match=r"has no config\.json"):
            open_checkpoint(name)  # the current directory
        return
    with pytest.raises(MissingFile, match="does not exist; name a Hugging Face directory"):
        open_checkpoint(name)


def test_other_files_are_no_models(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"onnx")
    with pytest.raises(Unsupported, match=r"model\.onnx is not a model: a Hugging Face directory"):
        open_checkpoint(path)


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path):
    one = spec()
    path = gguf_file(tmp_path / "m.gguf", one, weights(one)).rename(tmp_path / "blob")
    assert open_checkpoint(path).spec.hidden == open_config(str(path)).hidden == 64


def hub(monkeypatch, snapshot_download) -> None:
    """Stand in for huggingface_hub."""
    module = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)


def test_hub_ids_are_looked_for_in_the_cache_first_and_then_fetched(tmp_path, monkeypatch):
    one = spec()
    folder = hugging_face(tmp_path, one, weights(one))
    calls = []

    def snapshot_download(hub_id, allow_patterns, local_files_only):
        calls.append((hub_id, local_files_only))
        if local_files_only:
            raise OSError("not cached")
        assert "*.safetensors" in allow_patterns and "*.bin" not in allow_patterns
        return str(folder)

    hub(monkeypatch, snapshot_download)
    assert open_checkpoint("some/model-1.5B").spec.hidden == 64
    assert calls == [("some/model-1.5B", True), ("some/model-1.5B", False)]


def test_why_a_hub_id_could_not_be_fetched_is_one_line(monkeypatch):
    def snapshot_download(*args, **kwargs):
        raise RuntimeError("no network\nwith a long explanation")

    hub(monkeypatch, snapshot_download)
    with pytest.raises(
        MissingFile, match=r"some/model is neither .* fetched: no network; check the name and"
    ):
        open_checkpoint("some/model")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingFile, match="pip install huggingface_hub"):
        open_config("some/model")


def test_a_model_of_the_hubs_cache_is_called_by_its_id(tmp_path):
    """Its directory is called after a commit, which says nothing in a trace or a message."""
    one = spec()
    snapshot = tmp_path / "models--some--model-1.5B" / "snapshots" / ("c" * 40)
    snapshot.parent.mkdir(parents=True)
    hugging_face(snapshot, one, weights(one))
    assert open_checkpoint(snapshot).spec.name == "some/model-1.5B"
    assert open_checkpoint(snapshot).source.startswith("some/model-1.5B (Hugging Face directory /")
    assert open_config(snapshot / "config.json").name == "some/model-1.5B"
    other = tmp_path / "snapshots" / "mine"
    other.parent.mkdir()
    assert open_checkpoint(hugging_face(other, one, weights(one))).spec.name == "mine"
