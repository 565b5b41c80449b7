"""The safetensors reader: what the official writer writes, and refusal of everything else."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file

from dielet.checkpoint.safetensors import READABLE_DTYPES, SafetensorsFile
from dielet.errors import DamagedFile, DieletError, MissingFile, Unsupported

ORIGINAL = save(
    {
        "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "b": torch.arange(8, dtype=torch.bfloat16),
        "c": torch.arange(6, dtype=torch.float16).reshape(2, 3),
    },
    metadata={"format": "pt"},
)


def write(path: Path, header: object, data: bytes = b"") -> Path:
    """A file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2, 2), offsets: object = (0, 16)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_values_are_those_of_the_official_reader(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(ORIGINAL)
    file = SafetensorsFile(path)
    for name, expected in load(ORIGINAL).items():
        tensor = file.tensor(name)
        assert file.shapes[name] == tensor.shape == tuple(expected.shape)
        assert np.array_equal(tensor.array(), expected.float().numpy())
    assert file.tensor("b").kind == "bf16" and file.tensor("b").exact_format.name == "bf16"
    assert np.array_equal(file.tensor("a").rows(1, 3), np.arange(4, 12).reshape(2, 4))


def test_data_need_not_be_aligned(tmp_path):
    data = np.arange(4, dtype="<f4").tobytes()
    for spaces in range(4):
        header = json.dumps({"x": entry()}).encode() + b" " * spaces
        file = SafetensorsFile(write(tmp_path / "x.safetensors", header, data))
        assert np.array_equal(file.tensor("x").array(), [[0, 1], [2, 3]])


def test_reading_rows_does_not_give_views_of_the_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(4, 4), "y": torch.ones(4, 4, dtype=torch.bfloat16)}, path)
    file = SafetensorsFile(path)
    rows = file.tensor("x").rows(0, 4)
    rows[:] = 7
    codes = file.tensor("y").blocks(0, 4)
    codes.values[:] = 7
    assert (file.tensor("x").rows(0, 4) == 1).all() and (file.tensor("y").rows(0, 4) == 1).all()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"{", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a": 1e', b"", "not valid JSON"),
        (b"\xff\xfe{}", b"", "not valid JSON"),
        ([], b"", "not a JSON object"),
        (b'{"x": 1, "x": 2}', b"", "occurs twice"),
        ({"x": 1}, b"", "tensor x: its entry must have dtype"),
        ({"x": {"dtype": "F32"}}, b"", "must have dtype"),
        ({"x": entry(dtype="F31")}, bytes(16), "dtype F31 is not one of"),
        ({"x": entry(dtype=["F32"])}, bytes(16), "is not one of"),
        ({"x": entry(shape=[-1, 4])}, bytes(16), "not a list of sizes"),
        ({"x": entry(shape=[True, 4])}, bytes(16), "not a list of sizes"),
        ({"x": entry(shape=[1] * 9)}, bytes(16), "not a list of sizes"),
        ({"x": entry(shape="2")}, bytes(16), "not a list of sizes"),
        ({"x": entry(shape=[2**62, 2**62])}, bytes(16), "needs .* bytes, its data_offsets hold 16"),
        ({"x": entry(offsets=[0])}, bytes(16), "not two positions"),
        ({"x": entry(offsets=[0, 16.0])}, bytes(16), "not two positions"),
        ({"x": entry(offsets=[16, 0])}, bytes(16), "bytes 16..0 do not lie"),
        ({"x": entry(offsets=[0, 16])}, bytes(15), "do not lie in the 15 bytes"),
        ({"x": entry(offsets=[0, 12])}, bytes(12), "needs 16 bytes, its data_offsets hold 12"),
        ({"x": entry(), "y": entry(offsets=[8, 24])}, bytes(24), "overlaps another"),
        ({"x": entry(), "y": entry(offsets=[20, 36])}, bytes(36), "tensor y follows a gap"),
        ({"x": entry(offsets=[4, 20])}, bytes(20), "follows a gap"),
        ({"x": entry()}, bytes(17), "end at 16, but there are 17"),
        ({"a\nb": 1}, b"", r"tensor 'a\\nb'"),
    ],
)
def test_damage_is_named(tmp_path, header, data, message):
    with pytest.raises(DamagedFile, match=message) as error:
        SafetensorsFile(write(tmp_path / "x.safetensors", header, data))
    assert str(error.value).startswith(str(tmp_path)) and "\n" not in str(error.value)


def test_truncation_at_every_byte_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    for length in range(len(ORIGINAL)):
        path.write_bytes(ORIGINAL[:length])
        with pytest.raises(DamagedFile):
            SafetensorsFile(path)


def test_a_header_longer_than_the_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedFile, match=f"claims {1 << 62} bytes"):
        SafetensorsFile(path)


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(MissingFile, match="no\\.safetensors"):
        SafetensorsFile(tmp_path / "no.safetensors")
    with pytest.raises(DamagedFile, match="is a directory, not a file"):
        SafetensorsFile(tmp_path)


def test_integer_tensors_are_refused_only_when_asked_for(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"i": torch.arange(4), "f": torch.ones(4)}, path)
    file = SafetensorsFile(path)
    assert (file.tensor("f").array() == 1).all()
    with pytest.raises(Unsupported, match=f"tensor i is I64; supported: {READABLE_DTYPES[0]}"):
        file.tensor("i")


@given(st.lists(st.tuples(st.integers(0, len(ORIGINAL) - 1), st.integers(0, 255)), max_size=4))
@settings(max_examples=300, deadline=None)
def test_changed_bytes_give_tensors_or_one_line(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    data = bytearray(ORIGINAL)
    for place, value in changes:
        data[place] = value
    path.write_bytes(data)
    try:
        file = SafetensorsFile(path)
        for name, shape in file.shapes.items():
            if shape and all(shape) and len(shape) <= 2:
                file.tensor(name).array()
    except DieletError as error:
        assert "\n" not in str(error) and str(path) in str(error)
