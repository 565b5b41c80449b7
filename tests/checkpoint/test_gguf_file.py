"""The GGUF reader: what the reference writer writes, and refusal of everything else."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dielet.checkpoint.gguf_file import GgufFile
from dielet.errors import DamagedFile, DieletError, MissingFile, Unsupported

from . import make


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> bytes:
    """A file with every type of metadata and several types of tensor."""
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in METADATA.items():
        make.add(writer, key, value)
    writer.add_uint64("u64", 1 << 40)
    writer.add_int8("i8", -1)
    writer.add_float64("f64", 0.1)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    writer.add_tensor("f32", x)
    writer.add_tensor("vector", x[0])
    for kind in ("Q8_0", "Q4_1", "BF16"):
        block = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(kind, gguf.quants.quantize(x, block), raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


METADATA = {
    "text": "grüße\n",
    "number": 7,
    "flag": True,
    "ratio": 0.5,
    "words": ["a", "", "ü"],
    "numbers": [1, -2, 3],
}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def header(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def tensor(name: str = "t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return (
        text(name)
        + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        + struct.pack("<IQ", kind, offset)
    )


def padded(directory: bytes, data: int) -> bytes:
    """A directory, padding to 32 bytes, and that many bytes of data."""
    return directory + bytes(-len(directory) % 32) + bytes(data)


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def test_everything_is_what_the_reference_reader_reads(tmp_path, original):
    file = opened(tmp_path, original)
    for key, value in {**METADATA, "u64": 1 << 40, "i8": -1, "f64": 0.1}.items():
        assert file.metadata[key] == value
    reference = gguf.GGUFReader(tmp_path / "x.gguf")
    assert set(file.entries) == {t.name for t in reference.tensors}
    for t in reference.tensors:
        seen = file.tensor(t.name)
        assert seen.shape == tuple(int(n) for n in t.shape[::-1])
        expected = gguf.quants.dequantize(t.data, t.tensor_type).reshape(seen.shape)
        assert np.array_equal(seen.array(), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUX" + bytes(40), "not a GGUF file"),
        (header(0, 0) + b"", None),
        (header(1 << 60, 0) + bytes(40), "do not fit"),
        (header(0, 1 << 60) + bytes(40), "do not fit"),
        (header(0, 1) + text("k" * 70000), "longer than 65535"),
        (header(0, 1) + struct.pack("<Q", 1 << 63) + bytes(40), "longer than 65535"),
        (header(0, 1) + text("k") + struct.pack("<I", 99), "metadata k: value type 99"),
        (header(0, 1) + text("k") + struct.pack("<IQ", 8, 1 << 60), "metadata k: a text of"),
        (header(0, 1) + text("k") + struct.pack("<I", 8) + text(b"\xff"), "k: a text is not UTF-8"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 60), "k: an array of"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 10, 9) + bytes(64), "k: an array of 9"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "k: an array of type 9"),
        (header(0, 1) + text("k") + struct.pack("<I", 10) + b"123", "k: needs 8 bytes, 3 are left"),
        (header(0, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2, "metadata k: occurs twice"),
        (header(0, 1) + text("a\nb") + struct.pack("<I", 99), r"metadata 'a\\nb'"),
        (padded(header(1, 0) + tensor(), 127), "tensor t: its 128 bytes at .* truncated"),
        (padded(header(1, 0) + tensor(offset=1 << 62), 128), "end beyond"),
        (padded(header(1, 0) + tensor(offset=8), 256), "offset 8 is not a multiple of 32"),
        (padded(header(1, 0) + tensor(dims=()), 128), "has 0 dimensions"),
        (padded(header(1, 0) + tensor(dims=(1,) * 5), 128), "has 5 dimensions"),
        (padded(header(1, 0) + tensor(dims=(0,)), 128), "not a list of sensible sizes"),
        (padded(header(1, 0) + tensor(dims=(1 << 63,)), 128), "not a list of sensible sizes"),
        (padded(header(1, 0) + tensor(dims=(1 << 39,) * 4), 128), "end beyond"),
        (padded(header(1, 0) + tensor(dims=(33,), kind=8), 128), "rows of 33 .* Q8_0, .* of 32"),
        (padded(header(2, 0) + tensor() * 2, 256), "tensor t: occurs twice"),
        (padded(header(2, 0) + tensor("a") + tensor("b", offset=96), 256), "a and b overlap"),
        (padded(header(1, 0) + tensor("n" * 2000), 128), "longer than 1024"),
        (
            padded(
                header(1, 1) + text("general.alignment") + struct.pack("<II", 4, 0) + tensor(), 128
            ),
            "0 is not a positive multiple of 8",
        ),
    ],
)
def test_damage_is_named(tmp_path, content, message):
    if message is None:
        assert not opened(tmp_path, content).entries
        return
    with pytest.raises(DamagedFile, match=message) as error:
        opened(tmp_path, content)
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


def test_versions_and_types_that_are_not_read_are_named(tmp_path):
    with pytest.raises(Unsupported, match="version 1 is not supported, only 2 and 3; use a file"):
        opened(tmp_path, header(0, 0, version=1))
    with pytest.raises(
        Unsupported, match="a big-endian GGUF file is not supported; use the little-endian"
    ):
        opened(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    with pytest.raises(Unsupported, match="tensor t: weight type 200 is not supported"):
        opened(tmp_path, padded(header(1, 0) + tensor(kind=200), 128))
    file = opened(tmp_path, padded(header(1, 0) + tensor(dims=(256,), kind=21), 256))
    with pytest.raises(Unsupported, match="tensor t is IQ3_S; supported: F32"):
        file.tensor("t")


def test_empty_and_missing_files(tmp_path):
    with pytest.raises(DamagedFile, match="empty"):
        opened(tmp_path, b"")
    with pytest.raises(MissingFile, match=r"none\.gguf"):
        GgufFile(tmp_path / "none.gguf")


def test_truncation_is_refused_everywhere(tmp_path, original):
    path = tmp_path / "x.gguf"
    for length in [*range(0, len(original) - 64, 7), len(original) - 1]:
        path.write_bytes(original[:length])
        with pytest.raises(DamagedFile):
            GgufFile(path)


@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_changed_bytes_give_tensors_or_one_line(tmp_path_factory, original, changes):
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    data = bytearray(original)
    for place, value in changes:
        data[int(place * (len(data) - 1))] = value
    path.write_bytes(data)
    try:
        file = GgufFile(path)
        for name, entry in file.entries.items():
            if len(entry.shape) <= 2:
                file.tensor(name).array()
    except DieletError as error:
        assert "\n" not in str(error) and str(path) in str(error)
