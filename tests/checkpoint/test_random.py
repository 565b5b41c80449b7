"""Random checkpoints: the same numbers whichever way they are asked for."""

import numpy as np
import pytest

from dielet.checkpoint import RandomCheckpoint, open_config, open_random
from dielet.checkpoint.names import tensor_shapes
from dielet.errors import MissingFile

from .make import gguf_file, hugging_face, spec, weights

Q = "model.model.layers.1.self_attn.q_proj.weight"


def test_rows_do_not_depend_on_how_they_are_asked_for():
    tensor = RandomCheckpoint(spec(hidden=62), seed=3).tensor(Q)  # no multiple of four
    whole = tensor.array()
    assert whole.shape == tensor.shape == (128, 62) and whole.dtype == np.float32
    pieces = [tensor.rows(lo, min(lo + 7, 128)) for lo in range(0, 128, 7)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert tensor.rows(5, 5).shape == (0, 62)


def test_tensors_and_seeds_differ_and_repeat():
    one = RandomCheckpoint(spec(), seed=1)
    assert np.array_equal(one.tensor(Q).array(), RandomCheckpoint(spec(), 1).tensor(Q).array())
    assert not np.array_equal(one.tensor(Q).array(), RandomCheckpoint(spec(), 2).tensor(Q).array())
    other = one.tensor(Q.replace("layers.1", "layers.0"))
    assert not np.array_equal(one.tensor(Q).array(), other.array())
    specs = (spec(), spec(vocab=71))
    assert len({RandomCheckpoint(s, seed).identity for s in specs for seed in (1, 2)}) == 4


def test_numbers_are_spread_as_asked():
    tensors = RandomCheckpoint(spec(intermediate=4096), seed=0)
    x = tensors.tensor("model.model.layers.0.mlp.up_proj.weight").array()
    assert abs(x.mean()) < 1e-4 and abs(x.std() - 0.02) < 1e-4 and abs(x).max() < 0.036
    norm = tensors.tensor("model.model.norm.weight").array()
    assert norm.shape == (64,) and norm.min() > 0.8 and norm.max() < 1.2


def test_every_tensor_is_there():
    one = spec("qwen3", tied=False)
    checkpoint = RandomCheckpoint(one, 0)
    assert {n: checkpoint.tensor(n).shape for n in checkpoint.names()} == tensor_shapes(one)
    with pytest.raises(KeyError):
        checkpoint.tensor("model.nothing")


def test_random_weights_for_any_configuration(tmp_path):
    one = spec(eos_ids=(3,))
    folder = hugging_face(tmp_path / "hf", one, weights(one), eos_token_id=3)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").unlink()
    checkpoint = open_random(folder, 7)
    assert set(checkpoint.tokenizer_files()) == {"config.json", "tokenizer.json"}
    assert checkpoint.spec == open_config(folder) and checkpoint.eos_ids == (3,)
    assert open_random(folder / "config.json", 7).spec == checkpoint.spec
    path = gguf_file(tmp_path / "m.gguf", one, weights(one))
    assert "config.json" in open_random(path, 7).tokenizer_files()
    with pytest.raises(MissingFile):
        open_random(tmp_path / "nothing", 7)
