"""From a checkpoint's tensor to packed bytes: exact where it can be, streamed, by name when bad."""

import resource
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from dielet.checkpoint import RandomCheckpoint, open_checkpoint, pack_rows
from dielet.checkpoint.gguf_file import GgufFile
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.errors import NumericError, UsageError
from dielet.formats.packed import WeightFormat, unpack
from dielet.formats.quantize import quantize

from .make import gguf_file, hugging_face, spec, weights

Q = "model.model.layers.1.self_attn.q_proj.weight"
EXACT = [
    ("Q4_0", "int4g32"),
    ("Q4_0", "int8g32"),
    ("Q4_1", "int4g32m"),
    ("Q4_1", "int8g32m"),
    ("Q5_0", "int8g32"),
    ("Q5_1", "int8g32m"),
    ("Q8_0", "int8g32"),
    ("BF16", "bf16"),
]


@pytest.mark.parametrize(("kind", "name"), EXACT)
def test_blocks_are_taken_over_exactly_permuted_or_not(tmp_path, kind, name):
    one = spec()
    checkpoint = open_checkpoint(gguf_file(tmp_path / "m.gguf", one, weights(one), kind=kind))
    fmt = WeightFormat.parse(name)
    for tensor in (checkpoint.tensor(Q), checkpoint.tensor("model.model.embed_tokens.weight")):
        assert fmt in tensor.exact_formats
        packed = pack_rows(tensor, fmt)
        assert np.array_equal(unpack(fmt, packed, *tensor.shape), tensor.array())
        assert pack_rows(tensor, fmt, 32, 64).tobytes() == packed[1:2].tobytes()
        out = np.empty_like(packed)
        assert pack_rows(tensor, fmt, threads=1, out=out) is out
        assert out.tobytes() == packed.tobytes()


def test_the_smallest_exact_format_comes_first(tmp_path):
    one = spec()
    checkpoint = open_checkpoint(gguf_file(tmp_path / "m.gguf", one, weights(one), kind="Q4_1"))
    assert checkpoint.tensor(Q).exact_format == WeightFormat("int4", 32, minimum=True)
    assert checkpoint.tensor("model.model.norm.weight").exact_format is None


@pytest.mark.parametrize("name", ["int4g32", "int8g64", "int4g32m", "bf16"])
def test_everything_else_is_quantised(tmp_path, name):
    one = spec()
    checkpoint = open_checkpoint(hugging_face(tmp_path, one, weights(one)))
    fmt, tensor = WeightFormat.parse(name), checkpoint.tensor(Q)
    assert pack_rows(tensor, fmt).tobytes() == quantize(fmt, tensor.array()).tobytes()
    random = RandomCheckpoint(one, 1).tensor(Q)
    assert pack_rows(random, fmt, 32, 96).tobytes() == quantize(fmt, random.rows(32, 96)).tobytes()


def test_a_group_that_does_not_divide_the_width_names_the_tensor(tmp_path):
    one = spec()
    checkpoint = open_checkpoint(gguf_file(tmp_path / "m.gguf", one, weights(one), kind="Q4_0"))
    tensor = checkpoint.tensor("model.model.layers.0.mlp.down_proj.weight")
    with pytest.raises(UsageError, match=r"blk\.0\.ffn_down\.weight has 96 inputs.*int4g64"):
        pack_rows(tensor, WeightFormat("int4", 64))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_name_the_tensor(tmp_path, bad):
    x = np.ones((40, 64), np.float32)
    x[33, 1] = bad
    save_file({"q_proj": x}, tmp_path / "x.safetensors")
    tensor = SafetensorsFile(tmp_path / "x.safetensors").tensor("q_proj")
    with pytest.raises(NumericError, match=r"q_proj rows 0\.\.39: 1 of 2560 weights"):
        pack_rows(tensor, WeightFormat("bf16"))
    for kind, name in (("Q8_0", "int8g32"), ("Q4_1", "int4g32m"), ("BF16", "bf16")):
        block = gguf.GGMLQuantizationType[kind]
        raw = gguf.quants.quantize(np.ones((40, 64), np.float32), block)
        raw.reshape(40, -1)[33, 0:2] = np.frombuffer(np.array(bad, np.float16).tobytes(), np.uint8)
        if kind == "BF16":
            raw.reshape(40, -1)[33, 0:2] = [0x80, 0x7F]
        writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
        writer.add_tensor("q_proj", raw, raw_dtype=block)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        tensor = GgufFile(tmp_path / "x.gguf").tensor("q_proj")
        with pytest.raises(NumericError, match=r"q_proj rows 0\.\.39: 1 of \d+ .* NaN or inf"):
            pack_rows(tensor, WeightFormat.parse(name))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["int4g32", "bf16"])
def test_packing_a_large_tensor_does_not_hold_it_in_memory(tmp_path, name):
    """200 MB of float32 is packed within 100 MB, the file's own pages included."""
    N, K = 51200, 1024
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (N, K))
    x[:] = np.random.default_rng(0).standard_normal((64, K)).astype(np.float32).repeat(N // 64, 0)
    save_file({"x": x}, tmp_path / "x.safetensors")
    del x
    tensor = SafetensorsFile(tmp_path / "x.safetensors").tensor("x")
    fmt = WeightFormat.parse(name)
    out = np.lib.format.open_memmap(tmp_path / "p.npy", "w+", fmt.record(K), fmt.packed_shape(N, K))
    before = resident()
    for lo in range(0, N, 10240):
        pack_rows(tensor, fmt, lo, lo + 10240, out=out[lo // 32 : (lo + 10240) // 32])
        assert resident() - before < 100e6 + out.nbytes


def resident() -> int:
    """Bytes of this process that are in memory now, mapped files included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
