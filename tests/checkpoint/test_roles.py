"""Checkpoints under other names: role maps, and decoders that are a part of a larger model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.roles import read_roles
from dielet.errors import DamagedFile, DieletError, UsageError
from dielet.image import CompileOptions, compile_model, open_directory

from .make import hugging_face, spec, weights

EXAMPLE = Path(__file__).parents[2] / "docs" / "roles-example.toml"


def renamed(folder: Path) -> tuple[Path, Path]:
    """A llama directory, and the same under the names of the example."""
    one = spec(tied=False)
    known = hugging_face(folder / "known", one, weights(one))
    roles = read_roles(EXAMPLE)
    unknown = folder / "unknown"
    unknown.mkdir()
    config = json.loads((known / "config.json").read_text())
    for key, theirs in roles.config.items():
        config[theirs] = config.pop(key)
    for key in roles.values:
        config.pop(key)
    (unknown / "config.json").write_text(json.dumps({**config, "model_type": "gptish"}))
    tensors = load_file(known / "model.safetensors")
    save_file({roles.tensor(n): t for n, t in tensors.items()}, unknown / "model.safetensors")
    return known, unknown


def test_an_unknown_family_is_read_by_its_roles(tmp_path: Path) -> None:
    known, unknown = renamed(tmp_path)
    with pytest.raises(DieletError, match="'gptish' is not supported"):
        open_checkpoint(unknown)
    ours, theirs = open_checkpoint(unknown, read_roles(EXAMPLE)), open_checkpoint(known)
    assert ours.names() == theirs.names()
    for name in ours.names():
        assert np.array_equal(ours.tensor(name).array(), theirs.tensor(name).array())
    for field in ours.spec.__struct_fields__:
        if field != "name":
            assert getattr(ours.spec, field) == getattr(theirs.spec, field), field


def test_compile_takes_roles(tmp_path: Path) -> None:
    _, unknown = renamed(tmp_path)
    options = CompileOptions(roles=str(EXAMPLE), max_seq_len=64, kv_ladder=(64,), prefill_chunk=16)
    files = open_directory(compile_model(unknown, tmp_path / "out", options))
    assert files.manifest.spec.model_type == "llama"
    with pytest.raises(UsageError, match="not with random_weights"):
        CompileOptions(roles=str(EXAMPLE), random_weights=1)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("like = 3", UsageError, "like must be of type str"),
        ("like = 'mamba'", UsageError, "like is 'mamba'; it must be one of gemma3_text, llama"),
        ("", UsageError, "like is 'None'"),
        ("like = 'llama'\nextra = 1", UsageError, "extra is unknown; known: like, config"),
        ("like = 'llama'\nconfig = {a = 1}", UsageError, "config a must be a name"),
        ("like = 'llama'\ntensors = {a = 'b{layer}'}", UsageError, "both names or neither"),
        ("like = 'llama'\nignore = ['']", UsageError, "empty ending"),
        ("like = ", DamagedFile, "not valid TOML"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, text: str, error: type, message: str) -> None:
    path = tmp_path / "roles.toml"
    path.write_text(text)
    with pytest.raises(error, match=message) as seen:
        read_roles(path)
    assert str(path) in str(seen.value)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    known, _ = renamed(tmp_path)
    with pytest.raises(UsageError, match="has no n_embd, which roles take for hidden_size"):
        open_checkpoint(known, read_roles(EXAMPLE))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("tied", ["tied", "stored", "untied"])
def test_a_decoder_inside_of_a_larger_model(tmp_path: Path, prefix: str, tied: str) -> None:
    """Its settings are in `text_config`, its tensors among those of other parts."""
    one = spec(tied=tied != "untied")
    plain = hugging_face(tmp_path / "plain", one, weights(one))
    tensors = load_file(plain / "model.safetensors")
    if tied == "stored":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    config = json.loads((plain / "config.json").read_text())
    larger = tmp_path / "larger"
    larger.mkdir()
    outer = {"model_type": "looks_at_pictures", "text_config": config, "vision_config": {}}
    (larger / "config.json").write_text(json.dumps(outer))
    moved = {
        prefix + n.removeprefix("model.") if n.startswith("model.") else n: t
        for n, t in tensors.items()
    }
    moved["vision_tower.patch.weight"] = np.zeros((3, 4), np.float32)
    save_file(moved, larger / "model.safetensors")
    ours, theirs = open_checkpoint(larger), open_checkpoint(plain)
    assert ours.names() == theirs.names()
    for name in ours.names():
        assert np.array_equal(ours.tensor(name).array(), theirs.tensor(name).array())
    assert open_config(larger / "config.json").hidden == one.hidden
