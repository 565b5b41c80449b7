"""What a user may name: paths of several kinds, hub ids, and what is said of the rest."""

import os
import threading

import pytest

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.hub_settings import hub_settings
from dielet.checkpoint.hugging_face import directory_files
from dielet.checkpoint.roles import read_roles
from dielet.compat.rbln_artefact import class_of
from dielet.errors import DamagedFile, MissingFile, Unsupported
from dielet.generate.calibration import calibration_hash
from dielet.generate.text import read_files

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


PIPES = {
    "m.gguf": lambda path: open_checkpoint(path),
    "blob": lambda path: open_checkpoint(path),
    "f.json": lambda path: open_config(path),
    "roles.toml": lambda path: read_roles(path),
    "text.txt": lambda path: calibration_hash(path),
    "split-00001-of-00002.gguf": lambda path: open_config(path),
    "tokenizer.json": lambda path: read_files(path.parent),
    "rbln_config.json": lambda path: class_of(path.parent),
    "token": lambda path: _with_token_from(path),
}


def _with_token_from(path):
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
            patch.delenv(variable, raising=False)
        patch.setenv("HF_TOKEN_PATH", str(path))
        return hub_settings()


def refuses_pipes(read, path):
    """In another thread, which a reader that waits for somebody to write would keep for ever."""
    found = []

    def call():
        try:
            found.append(read(path))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert found, f"{path} is being waited for"
    assert isinstance(found[0], DamagedFile), found[0]
    assert "is a pipe, not a file; give " in str(found[0]) and "\n" not in str(found[0])


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_refused_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refuses_pipes(PIPES[name], tmp_path / name)


def test_a_pipe_for_weights_is_refused_not_waited_for(tmp_path):
    one = spec()
    folder = hugging_face(tmp_path / "m", one, weights(one))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    refuses_pipes(open_checkpoint, folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"])
def test_a_pipe_beside_weights_is_refused_not_passed_over(tmp_path, name):
    os.mkfifo(tmp_path / name)
    refuses_pipes(directory_files, tmp_path)
