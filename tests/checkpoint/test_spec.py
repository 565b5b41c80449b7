"""ModelSpec refuses what makes no sense, and says which number and which limit."""

import msgspec
import pytest

from dielet.checkpoint.names import (
    account_for,
    gguf_name,
    hugging_face_name,
    tensor_shapes,
)
from dielet.checkpoint.spec import ModelSpec
from dielet.errors import DamagedFile, Unsupported, UsageError

from .make import spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "hidden is 0; it must be from 1 to 131072"),
        ({"layers": 5000}, "layers is 5000; it must be from 1 to 1024"),
        ({"vocab": -1}, "vocab is -1"),
        ({"heads": 3}, "heads 3 is not a multiple of kv_heads 2"),
        ({"head_dim": 33}, "head_dim is 33"),
        ({"norm_eps": float("nan")}, "norm_eps is nan"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"bos_id": 70}, "bos_id 70 is outside the vocabulary of 70"),
        ({"eos_ids": (1, 99)}, "eos_ids 99 is outside"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear: factor is 'None'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 10**400}}, "linear: factor is"),
        ({"rope_scaling": {"rope_type": "factors", "factors": [1.0]}}, "a list of 16 numbers"),
    ],
)
def test_senseless_numbers_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        spec(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "mamba"},
            "model_type 'mamba' is not supported; supported: gemma3_text, llama",
        ),
        ({"activation": "gelu"}, "activation 'gelu' is not supported; supported: silu"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type 'mrope' is not supported"),
        ({"rope_scaling": {"rope_type": []}}, "is not supported; supported: linear, llama3"),
    ],
)
def test_unsupported_things_are_named_with_what_is_supported(changes, message):
    with pytest.raises(Unsupported, match=message):
        spec(**changes)


def test_a_spec_survives_json():
    one = spec("qwen3", rope_scaling={"rope_type": "linear", "factor": 2.0}, eos_ids=(1, 2))
    assert msgspec.json.decode(msgspec.json.encode(one), type=ModelSpec) == one


def test_qwen3_1_7b_has_1_7_billion_parameters():
    one = ModelSpec(
        model_type="qwen3",
        hidden=2048,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        intermediate=6144,
        vocab=151936,
        norm_eps=1e-6,
        rope_theta=1e6,
        max_position=40960,
        tied=True,
        qk_norm=True,
    )
    assert one.parameters == 1_720_574_976
    sizes = [
        shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in tensor_shapes(one).values()
    ]
    assert sum(sizes) == one.parameters


def test_names_in_files():
    q = "model.model.layers.11.self_attn.q_proj.weight"
    assert hugging_face_name(q) == "model.layers.11.self_attn.q_proj.weight"
    assert gguf_name(q) == "blk.11.attn_q.weight"
    norm = "model.model.layers.0.pre_attention_layernorm.weight"
    assert hugging_face_name(norm) == "model.layers.0.input_layernorm.weight"
    assert gguf_name(norm) == "blk.0.attn_norm.weight"
    assert hugging_face_name("model.lm_head.weight") == "lm_head.weight"
    assert gguf_name("model.lm_head.weight") == "output.weight"
    for one in (spec("qwen3", tied=False), spec("llama")):
        names = tensor_shapes(one)
        assert len({gguf_name(n) for n in names}) == len(names)
        assert ("model.lm_head.weight" in names) == (not one.tied)


def test_every_kind_of_complaint_is_in_one_error_and_lists_are_capped():
    expected = {f"t{i}": (2, 3) for i in range(10)} | {"w": (2, 3), "v": (4,)}
    found = {"w": (3, 2), "v": (4,), "surplus": (1,), "x.inv_freq": (1,)}
    with pytest.raises(DamagedFile) as error:
        account_for("file", expected, found, lambda name: name.endswith("inv_freq"))
    message = str(error.value)
    assert "10 missing: t0, t1, t2, t3 and 6 more" in message
    assert "1 unexpected: surplus" in message and "inv_freq" not in message
    assert "1 wrongly shaped: w is [3, 2], expected [2, 3]" in message
