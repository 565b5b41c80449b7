"""GGUF checkpoints: equal to the Hugging Face directory of the same weights, and real ones."""

import json
import os

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.checkpoint import open_checkpoint, open_config
from dielet.checkpoint.gguf_file import GgufFile
from dielet.checkpoint.names import HEAD
from dielet.errors import DamagedFile, DieletError, Unsupported
from tests import data

from .make import gguf_file, hugging_face, spec, weights


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_the_same_model_in_both_kinds_of_file_is_the_same(tmp_path, family, tied):
    one = spec(family, tied=tied)
    tensors = weights(one)
    ours = open_checkpoint(gguf_file(tmp_path / "m.gguf", one, tensors))
    theirs = open_checkpoint(hugging_face(tmp_path / "hf", one, tensors))
    assert ours.names() == theirs.names()
    for name in ours.names():
        assert np.array_equal(ours.tensor(name).array(), theirs.tensor(name).array()), name
    for field in one.__struct_fields__:
        if field != "name":
            assert getattr(ours.spec, field) == getattr(theirs.spec, field), field
    assert (HEAD in ours.names()) != tied
    assert open_config(tmp_path / "m.gguf") == ours.spec


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_permuted_rows_come_in_order_in_every_block_format(tmp_path, kind):
    one = spec()
    tensors = weights(one)
    checkpoint = open_checkpoint(gguf_file(tmp_path / "m.gguf", one, tensors, kind=kind))
    block = gguf.GGMLQuantizationType[kind]
    for part in ("q_proj", "k_proj", "v_proj"):
        name = f"model.model.layers.1.self_attn.{part}.weight"
        tensor = checkpoint.tensor(name)
        assert tensor.kind == kind.lower()
        data_ = gguf.quants.quantize(tensors[name], block)
        expected = gguf.quants.dequantize(data_, block)
        assert np.array_equal(tensor.array(), expected)
        assert np.array_equal(tensor.rows(5, 41), expected[5:41])


def test_a_file_altered_in_place_has_another_identity(tmp_path):
    one = spec()
    path = gguf_file(tmp_path / "m.gguf", one, weights(one))
    first, before = open_checkpoint(path).identity, path.stat()
    assert open_checkpoint(path).identity == first
    with path.open("r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(b"\x01")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert open_checkpoint(path).identity != first


def test_numbers_are_the_decimals_that_were_meant(tmp_path):
    one = spec(norm_eps=1e-6, rope_theta=1e6)
    seen = open_config(gguf_file(tmp_path / "m.gguf", one, weights(one)))
    assert seen.norm_eps == 1e-6 and seen.rope_theta == 1e6


def opened(tmp_path, metadata=None, extra=None, **changes):
    one = spec(**changes)
    return open_checkpoint(
        gguf_file(tmp_path / "m.gguf", one, weights(one), metadata=metadata, extra=extra)
    )


def test_rotary_divisors_and_scaling(tmp_path):
    divisors = np.linspace(1, 8, 16, dtype=np.float32)
    seen = opened(tmp_path, extra={"rope_freqs.weight": divisors}).spec.rope_scaling
    assert seen["rope_type"] == "factors"
    assert np.array_equal(np.array(seen["factors"], np.float32), divisors)
    seen = opened(tmp_path, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert seen.spec.rope_scaling == {"rope_type": "linear", "factor": 4.0}
    seen = opened(
        tmp_path,
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 256,
        },
    )
    assert seen.spec.rope_scaling["original_max_position_embeddings"] == 256
    with pytest.raises(ValueError, match=r"m\.gguf: rope factors must be a list of 16"):
        opened(tmp_path, extra={"rope_freqs.weight": divisors[:8]})
    with pytest.raises(DamagedFile, match=r"rope_freqs\.weight is larger than any head"):
        opened(tmp_path, extra={"rope_freqs.weight": np.ones(1 << 15, np.float32)})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.attention.sliding_window": 512}, "sliding-window"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"llama.rope.dimension_count": 16}, "rope.dimension_count is 16, .* head size 32"),
        ({"llama.attention.value_length": 64}, "value_length is 64"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 1.0}, "'longrope'"),
        ({"llama.attention.head_count_kv": [2, 4]}, "head_count_kv differs between layers"),
    ],
)
def test_what_would_change_results_unnoticed_is_refused(tmp_path, metadata, message):
    with pytest.raises(Unsupported, match=message):
        opened(tmp_path, metadata)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": "2"}, "llama.block_count is '2', not int"),
        ({"llama.block_count": 3}, r"9 missing: blk\.2\.attn_norm\.weight"),
        ({"llama.vocab_size": 71}, "has 70 rows, but vocab_size is 71"),
        ({"tokenizer.ggml.tokens": ["a"] * 71}, "there are 71 tokens"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
    ],
)
def test_metadata_that_makes_no_sense_is_named(tmp_path, metadata, message):
    with pytest.raises((DamagedFile, Unsupported), match=message) as error:
        opened(tmp_path, metadata)
    assert str(error.value).startswith(str(tmp_path / "m.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """A good file with a small tokenizer."""
    one = spec(vocab=256)
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    tokens = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [chr(i + 192) for i in range(256)],
        "tokenizer.ggml.token_type": [1] * 254 + [3, 4],
        "tokenizer.ggml.merges": [f"{chr(192)} {chr(193)}"],
        "tokenizer.ggml.eos_token_id": 254,
        "tokenizer.chat_template": "{{ messages }}",
    }
    tokens["tokenizer.ggml.tokens"][200] = chr(192) + chr(193)
    return gguf_file(path, one, weights(one), metadata=tokens).read_bytes()


@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_bytes_give_a_checkpoint_or_one_line(tmp_path_factory, whole, changes):
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    mutated = bytearray(whole)
    for place, value in changes:
        mutated[int(place * 8000)] = value  # the metadata and the directory
    path.write_bytes(mutated)
    try:
        checkpoint = open_checkpoint(path)
        checkpoint.tokenizer_files()
        checkpoint.spec.rotary_frequencies()
        for name in checkpoint.names():
            checkpoint.tensor(name).rows(0, 1)
    except DieletError as error:
        assert "\n" not in str(error) and str(path) in str(error)


def test_sizes_may_be_given_per_layer_if_all_are_equal(tmp_path):
    metadata = {"llama.attention.head_count_kv": [2, 2], "llama.feed_forward_length": [96, 96]}
    assert opened(tmp_path, metadata).spec.kv_heads == 2


def test_biases_of_one_layer_alone_are_refused(tmp_path):
    with pytest.raises(DamagedFile, match=r"1 missing: blk\.1\.attn_q\.bias"):
        opened(tmp_path, extra={"blk.0.attn_q.bias": np.zeros(128, np.float32)})


def test_other_architectures_are_refused_by_name(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(Unsupported, match=r"architecture 'mamba' is not supported; supported: gem"):
        open_checkpoint(tmp_path / "m.gguf")


def test_without_a_tokenizer_there_still_is_a_configuration(tmp_path):
    checkpoint = opened(tmp_path, {"tokenizer.ggml.eos_token_id": 5})
    files = checkpoint.tokenizer_files()
    assert set(files) == {"config.json", "generation_config.json"}
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [5]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    again = open_config(tmp_path)
    for field in again.__struct_fields__:
        if field != "name":
            assert getattr(again, field) == getattr(checkpoint.spec, field), field


@pytest.mark.network
def test_smollm2_is_read_to_the_bit():
    path = data.smollm2_gguf()
    checkpoint = open_checkpoint(path)
    one = checkpoint.spec
    assert (one.model_type, one.hidden, one.layers, one.heads) == ("llama", 576, 30, 9)
    assert (one.kv_heads, one.head_dim, one.intermediate, one.vocab) == (3, 64, 1536, 49152)
    assert (one.norm_eps, one.rope_theta, one.max_position) == (1e-5, 1e5, 8192)
    assert one.tied and one.eos_ids == (2, 0) and one.bos_id == 1
    reference = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name in checkpoint.names()[:12]:
        tensor = checkpoint.tensor(name)
        theirs = reference[tensor.name]
        rows = theirs.data if theirs.data.ndim == 2 else theirs.data[None]
        expected = gguf.quants.dequantize(rows, theirs.tensor_type)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = expected.reshape(-1, 32, 2, 576)
            expected = heads.swapaxes(1, 2).reshape(-1, 576)
        assert np.array_equal(tensor.rows(0, tensor.N), expected), name
    checkpoint.tokenizer_files()


@pytest.mark.network
@pytest.mark.slow
def test_the_numbers_of_gemma_3_are_read():
    path = data.gemma3_gguf()
    file = GgufFile(path)
    kinds = {entry.block.name for entry in file.entries.values()}
    assert kinds == {"F32", "Q4_K", "Q5_0", "Q6_K", "Q8_0"}
    for theirs in gguf.GGUFReader(path).tensors:
        tensor = file.tensor(theirs.name)
        rows = theirs.data if theirs.data.ndim == 2 else theirs.data[None]
        expected = gguf.quants.dequantize(rows[:64], theirs.tensor_type)
        assert np.array_equal(tensor.rows(0, min(64, tensor.N)), expected), theirs.name
    checkpoint = open_checkpoint(path)
    spec = checkpoint.spec
    assert (spec.model_type, spec.layers, spec.window, spec.tied) == ("gemma3_text", 18, 512, True)
    assert [i for i in range(18) if i not in spec.windowed] == [5, 11, 17]
    assert checkpoint.eos_ids == (1, 106) and checkpoint.bos_id == 2
