"""Hugging Face directories: everything accounted for, everything refused by name."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.families import SUPPORTED_MODEL_TYPES
from dielet.checkpoint.names import HEAD, tensor_shapes
from dielet.errors import DamagedFile, DieletError, MissingFile, Unsupported

from .make import config, hugging_face, spec, weights


def edit(path: Path, **changes: object) -> None:
    """Change entries of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values |= changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def save(folder: Path, **changes: object) -> Path:
    """A good tied llama directory, with changes to config.json."""
    one = spec()
    return hugging_face(folder, one, weights(one), **changes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_what_transformers_saves_is_read(tmp_path, family, dtype, tied):
    classes = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    config_class, model_class = classes[family]
    settings = config_class(
        vocab_size=70,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        rope_theta=12345.0,
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=[2, 3],
    )
    model = model_class(settings).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.spec == spec(
        family,
        tied=tied,
        rope_theta=12345.0,
        bos_id=1,
        eos_ids=(2, 3),
        name=tmp_path.name,
    )
    assert open_config(tmp_path) == open_config(tmp_path / "config.json") == checkpoint.spec
    assert checkpoint.eos_ids == (2, 3) and checkpoint.bos_id == 1
    state = model.state_dict()
    assert len(checkpoint.names()) == len(state) - tied
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        assert np.array_equal(tensor.array(), state[tensor.name].float().numpy())
        assert (
            tensor.kind
            == {2: "f16" if dtype == torch.float16 else "bf16", 4: "f32"}[dtype.itemsize]
        )


def test_identity_changes_with_the_weights_and_with_the_configuration(tmp_path):
    folder = save(tmp_path / "a")
    seen = {open_checkpoint(folder).identity}
    assert open_checkpoint(folder).identity in seen
    path = folder / "model.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(b"\x01")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen.add(open_checkpoint(folder).identity)
    for name, content in (
        ("generation_config.json", {"eos_token_id": [2, 5]}),
        ("generation_config.json", {"eos_token_id": [2, 5], "temperature": 0.5}),
        ("tokenizer_config.json", {"bos_token": "<s>"}),
        ("tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ bos_token }}"}),
        ("special_tokens_map.json", {"unk_token": {"content": "<unk>"}}),
    ):
        (folder / name).write_text(json.dumps(content))
        seen.add(open_checkpoint(folder).identity)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    seen.add(open_checkpoint(folder).identity)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 2e-5}))
    seen.add(open_checkpoint(folder).identity)
    assert len(seen) == 9 and all(len(i) == 64 for i in seen)


def test_special_tokens_are_kept_as_transformers_reads_them(tmp_path):
    folder = save(tmp_path / "a")
    kept = lambda: json.loads(  # noqa: E731
        open_checkpoint(folder).tokenizer_files()["tokenizer_config.json"]
    )
    config = {
        "bos_token": None,
        "eos_token": {"content": "<e>", "lstrip": False},
        "add_bos_token": True,
        "image_token": "<image>",
        "extra_special_tokens": {"boi_token": "<boi>"},
        "chat_template": "{{ bos_token }}",
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
    }
    own = {"bos_token": None, "eos_token": "<e>", "image_token": "<image>", "boi_token": "<boi>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert kept() == own
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<b>", "unk_token": "<u>"}')
    assert kept() == {**own, "bos_token": "<b>", "unk_token": "<u>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "added_tokens_decoder": {}})
    )
    assert kept() == own
    (folder / "tokenizer_config.json").write_text('{"pad_token": 5}')
    with pytest.raises(DamagedFile, match=r"tokenizer_config\.json: pad_token is 5"):
        open_checkpoint(folder).tokenizer_files()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "config.json: model_type 'mamba' is not supported; supported: g"),
        ({"use_sliding_window": True}, "use_sliding_window is true"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types has sliding_attention in layers"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantised with 'hqq'"),
        ({"rope_scaling": {"type": "mrope", "factor": 2.0}}, "rope_type 'mrope'"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor is 0.1"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is true, which is not supported"),
        ({"alibi": True}, "alibi is true, which is not supported; only false"),
        ({"use_bidirectional_attention": "all"}, 'use_bidirectional_attention is "all"'),
    ],
)
def test_what_would_change_results_unnoticed_is_refused(tmp_path, changes, message):
    with pytest.raises(Unsupported, match=message):
        open_checkpoint(save(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', not int"),
        ({"hidden_size": 64.0}, "hidden_size is '64.0', not int"),
        ({"num_hidden_layers": True}, "num_hidden_layers is 'True', not int"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not token ids"),
        ({"eos_token_id": [-1]}, "not token ids"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is '1', not bool"),
        ({"rms_norm_eps": None}, "rms_norm_eps is null"),
        ({"rope_theta": 0}, "rope_theta is 0.0; it must be above 1"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta is 0.0"),
        ({"model_type": "gemma3_text", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"model_type": "gemma3_text", "rope_local_base_freq": 0}, "rope_theta of sliding_att"),
        ({"model_type": "gemma3_text", "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0; .* or null"),
        ({"model_type": "phi3", "sliding_window": 0}, "sliding_window is 0"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 0},
            "sliding_window is 0",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_named(tmp_path, changes, message):
    with pytest.raises(DamagedFile, match=message) as error:
        open_checkpoint(save(tmp_path, **changes))
    assert str(error.value).startswith(str(tmp_path / "config.json"))


@pytest.mark.parametrize("family", SUPPORTED_MODEL_TYPES)
def test_attention_that_looks_ahead_is_refused_of_every_family(tmp_path, family):
    path = tmp_path / "config.json"
    same = {"model_type": family, "is_causal": True, "alibi": None, "is_encoder_decoder": False}
    path.write_text(json.dumps({**config(spec()), **same}))
    assert open_config(path).model_type == family
    path.write_text(json.dumps({**config(spec()), **same, "is_causal": False}))
    with pytest.raises(Unsupported, match="is_causal is false, which is not supported; only true"):
        open_config(path)


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 1 << 70),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(["linear", "yarn", "llama3", "default"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "rope_theta"]), inner),
    ),
    max_leaves=6,
)
KEYS = [*config(spec()), "rope_scaling", "rope_parameters", "layer_types", "eos_token_id"]


@given(changes=st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=3))
@settings(max_examples=300, deadline=None)
def test_any_configuration_gives_a_spec_or_one_line(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps({**config(spec()), **changes}))
    try:
        open_config(path).rotary_frequencies()
    except DieletError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)


def test_absurd_sizes_name_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json: layers is 1000000; it must be from 1"):
        open_checkpoint(save(tmp_path, num_hidden_layers=1_000_000))
    with pytest.raises(ValueError, match=r"config\.json: heads is 0"):
        open_checkpoint(save(tmp_path, num_attention_heads=0))


@pytest.mark.parametrize("text", ["", "{", "[]", "1" * 5000, '{"a":' * 100_000, "\ud800"])
def test_a_configuration_that_is_no_json_object_is_damaged(tmp_path, text):
    folder = save(tmp_path)
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DamagedFile, match=r"config\.json"):
        open_checkpoint(folder)


def test_scaling_of_older_and_newer_configurations_is_the_same(tmp_path):
    scaling = {"factor": 2.0}
    old = open_config(save(tmp_path / "old", rope_scaling={**scaling, "type": "linear"}))
    new = open_config(
        save(
            tmp_path / "new",
            rope_theta=None,
            rope_parameters={**scaling, "rope_type": "linear", "rope_theta": 10000.0},
        )
    )
    assert old.rope_scaling == new.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert old.rope_theta == new.rope_theta == 10000.0


def test_ends_of_text_are_united_from_every_file(tmp_path):
    folder = save(tmp_path, eos_token_id=3)
    edit(folder / "generation_config.json", eos_token_id=[5, 3])
    edit(folder / "tokenizer_config.json", eos_token="<end>")
    edit(folder / "tokenizer.json", added_tokens=[{"id": 9, "content": "<end>"}])
    assert open_config(folder).eos_ids == (3, 5, 9)
    edit(folder / "tokenizer.json", added_tokens=[], model={"vocab": {"<end>": 11}})
    assert open_config(folder).eos_ids == (3, 5, 11)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<end>"})
    edit(folder / "tokenizer_config.json", added_tokens_decoder={"13": {"content": "<end>"}})
    assert open_config(folder).eos_ids == (3, 5, 13)


def test_files_for_the_model_directory(tmp_path):
    folder = save(tmp_path)
    assert set(open_checkpoint(folder).tokenizer_files()) == {"config.json"}
    edit(folder / "generation_config.json", eos_token_id=3)
    edit(folder / "tokenizer.json", model={})
    edit(folder / "tokenizer_config.json", chat_template="{{ 'a' }}")
    files = open_checkpoint(folder).tokenizer_files()
    assert files["chat_template.jinja"] == b"{{ 'a' }}"
    assert files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    edit(folder / "tokenizer_config.json", chat_template=named)
    assert open_checkpoint(folder).tokenizer_files()["chat_template.jinja"] == b"d"
    (folder / "chat_template.jinja").write_text("of its own: ü")
    own = open_checkpoint(folder).tokenizer_files()["chat_template.jinja"]
    assert own.decode() == "of its own: ü"


@pytest.mark.parametrize("template", [5, [], [5], [{"name": "default"}], "\ud800"])
def test_a_chat_template_that_is_none_is_damaged(tmp_path, template):
    folder = save(tmp_path)
    edit(folder / "tokenizer_config.json", chat_template=template)
    with pytest.raises(DamagedFile, match=r"chat.template"):
        open_checkpoint(folder).tokenizer_files()


def test_missing_unexpected_and_misshapen_tensors_are_all_named(tmp_path):
    folder = save(tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(128, np.float32)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = np.zeros(16, np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((64, 96), np.float32)
    save_file(tensors, path)
    with pytest.raises(DamagedFile) as error:
        open_checkpoint(folder)
    message = str(error.value)
    assert "1 missing: model.norm.weight;" in message
    assert "1 unexpected: model.layers.0.self_attn.q_proj.bias;" in message
    assert "up_proj.weight is [64, 96], expected [96, 64]" in message
    assert "inv_freq" not in message and str(path) in message


def test_integer_weights_are_refused(tmp_path):
    folder = save(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = np.zeros(64, np.int32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(Unsupported, match=r"tensor model\.norm\.weight is I32; supported: BF16"):
        open_checkpoint(folder)


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    one = spec()
    tensors = weights(one)
    tensors[HEAD] = tensors["model.model.embed_tokens.weight"].copy()
    checkpoint = open_checkpoint(hugging_face(tmp_path, one, tensors))
    assert HEAD not in checkpoint.names()
    tensors[HEAD][69, 63] += 1
    with pytest.raises(DamagedFile, match=r"tie_word_embeddings is true, yet lm_head"):
        open_checkpoint(hugging_face(tmp_path, one, tensors))


def shard(folder: Path, weight_map: dict[str, object]) -> Path:
    """Divide a directory's file in two, with any index at all."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    save_file({n: tensors[n] for n in names[:5]}, folder / "a.safetensors")
    save_file({n: tensors[n] for n in names[5:]}, folder / "b.safetensors")
    good = {n: "a.safetensors" if n in names[:5] else "b.safetensors" for n in names}
    edit(folder / "model.safetensors.index.json", weight_map={**good, **weight_map})
    return folder


def test_shards_are_joined(tmp_path):
    checkpoint = open_checkpoint(shard(save(tmp_path), {}))
    expected = weights(spec())
    for name in tensor_shapes(checkpoint.spec):
        assert np.array_equal(checkpoint.tensor(name).array(), expected[name])


@pytest.mark.parametrize(
    ("weight_map", "error", "message"),
    [
        ({"x": "../model.safetensors"}, DamagedFile, "not the name of a file beside it"),
        ({"x": "/etc/passwd"}, DamagedFile, "not the name of a file beside it"),
        ({"x": "a\0.safetensors"}, DamagedFile, "not the name of a file beside it"),
        ({"x": 5}, DamagedFile, "not the name of a file beside it"),
        ({"x": "c.safetensors"}, MissingFile, r"c\.safetensors"),
        ({"x": "a.safetensors"}, DamagedFile, r"tensor x is not in a\.safetensors"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, weight_map, error, message):
    with pytest.raises(error, match=message):
        open_checkpoint(shard(save(tmp_path), weight_map))


def test_a_tensor_in_two_shards_is_damage(tmp_path):
    folder = shard(save(tmp_path), {})
    whole = {**load_file(folder / "a.safetensors"), "model.norm.weight": np.zeros(64, np.float32)}
    save_file(whole, folder / "a.safetensors")
    with pytest.raises(DamagedFile, match=r"norm\.weight is in both a.* and b"):
        open_checkpoint(folder)


def test_directories_without_weights(tmp_path):
    with pytest.raises(MissingFile, match=r"has no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config(spec())))
    assert open_config(tmp_path).hidden == 64
    with pytest.raises(MissingFile, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(Unsupported, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_size": 10**12}, "hidden is 1000000000000"),
        ({"num_key_value_heads": 3}, "not a multiple of kv_heads 3"),
        ({"rms_norm_eps": 7.0}, "norm_eps is 7.0"),
        ({"eos_token_id": 10**6}, "eos_ids 1000000 is outside the vocabulary"),
    ],
)
def test_an_absurd_configuration_is_damage_not_a_wrong_command(tmp_path, changes, complaint):
    folder = save(tmp_path / "a")
    edit(folder / "config.json", **changes)
    with pytest.raises(DamagedFile, match=complaint) as caught:
        open_config(folder)
    assert str(folder / "config.json") in str(caught.value)


def test_a_complaint_names_its_file_once(tmp_path):
    folder = save(tmp_path / "a", eos_token_id=-1)
    with pytest.raises(DamagedFile, match="eos_token_id is '-1', not token ids") as caught:
        open_config(folder)
    assert str(caught.value).count(str(folder)) == 1


def test_nan_in_a_norm_names_its_file(tmp_path):
    from dielet.image import CompileOptions, compile_model

    folder = save(tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][1] = np.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(DamagedFile, match=r"a/model\.safetensors: model\.norm\.weight holds NaN"):
        compile_model(folder, tmp_path / "out", CompileOptions(max_seq_len=32))
