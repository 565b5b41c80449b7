"""A model in several .gguf files, as the reference writer divides it."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from dielet.checkpoint import open_checkpoint, open_config
from dielet.errors import DamagedFile, MissingFile, Unsupported

from . import make
from .make import gguf_file, spec, weights


def part(folder: Path, number: int, count: int = 3, stem: str = "m") -> Path:
    return folder / f"{stem}-{number:05d}-of-{count:05d}.gguf"


def divide(folder: Path, stem: str = "m", seed: int = 0, tensors: int = 8) -> Path:
    """A small model in files of `tensors` each; the first part."""
    one = spec()
    gguf_file(folder / f"{stem}.gguf", one, weights(one, seed), split=tensors)
    return next(folder.glob(f"{stem}-00001-of-*.gguf"))


def test_any_part_opens_all(tmp_path):
    one = spec()
    whole = open_checkpoint(gguf_file(tmp_path / "whole.gguf", one, weights(one)))
    first = divide(tmp_path)
    assert first == part(tmp_path, 1) and part(tmp_path, 3).is_file()
    for path in (first, part(tmp_path, 2), part(tmp_path, 3)):
        checkpoint = open_checkpoint(path)
        assert checkpoint.names() == whole.names()
        for name in whole.names():
            assert np.array_equal(checkpoint.tensor(name).array(), whole.tensor(name).array())
        assert open_config(path) == checkpoint.spec
        assert checkpoint.spec.layers == one.layers
        assert checkpoint.identity == open_checkpoint(first).identity


def test_every_part_is_in_the_identity(tmp_path):
    first = divide(tmp_path)
    before = open_checkpoint(first).identity
    last = part(tmp_path, 3)
    content = bytearray(last.read_bytes())
    content[-100] ^= 1
    last.write_bytes(content)
    assert open_checkpoint(first).identity != before


def test_parts_that_are_missing_are_named(tmp_path):
    divide(tmp_path)
    part(tmp_path, 2).unlink()
    for opened in (1, 3):
        with pytest.raises(MissingFile, match=r"one of 3 parts, but m-00002-of-00003\.gguf is not"):
            open_checkpoint(part(tmp_path, opened))
    part(tmp_path, 1).unlink()
    with pytest.raises(MissingFile, match=r"m-00001-of-00003\.gguf and 1 more is not beside it"):
        open_checkpoint(part(tmp_path, 3))


def test_parts_under_other_names_are_refused(tmp_path):
    first = divide(tmp_path)
    other = shutil.copy(first, tmp_path / "model.gguf")
    with pytest.raises(Unsupported, match=r"one of 3 parts, .*NAME-00001-of-00003\.gguf"):
        open_checkpoint(other)
    other = shutil.copy(first, part(tmp_path, 1, 4))
    with pytest.raises(DamagedFile, match="one of 3 parts by its metadata, 00004 by its name"):
        open_checkpoint(other)
    shutil.copy(part(tmp_path, 3), part(tmp_path, 2))
    with pytest.raises(DamagedFile, match=r"m-00002-of.*: part 3 by its metadata, 2 by its name"):
        open_checkpoint(first)


def test_parts_of_another_division_are_refused(tmp_path):
    first = divide(tmp_path)
    one = spec(layers=3)
    gguf_file(tmp_path / "n.gguf", one, weights(one), split=12)
    shutil.copy(part(tmp_path, 2, stem="n"), part(tmp_path, 2))
    with pytest.raises(
        DamagedFile, match=r"its split\.tensors\.count is 29, but 20 in m-00001.*parts"
    ):
        open_checkpoint(first)


def test_a_tensor_in_two_parts_is_damage(tmp_path):
    one = spec()
    tensors = weights(one)
    names = list(tensors)
    for number, mine in ((1, names[:12]), (2, names[11:])):
        extra = {"split.no": number - 1, "split.count": 2, "split.tensors.count": 21}
        chosen = {name: tensors[name] for name in mine}
        gguf_file(part(tmp_path, number, 2), one, chosen, metadata=extra)
    with pytest.raises(
        DamagedFile, match=r"00002-of-00002\.gguf: tensor blk\.\S+ is in m-00001-of"
    ):
        open_checkpoint(part(tmp_path, 1, 2))


def test_fewer_tensors_than_stated_are_damage(tmp_path):
    one = spec()
    extra = {"split.no": 0, "split.count": 2, "split.tensors.count": 30}
    gguf_file(part(tmp_path, 1, 2), one, weights(one), metadata=extra)
    writer = gguf.GGUFWriter(part(tmp_path, 2, 2), "llama")
    for key, value in {**extra, "split.no": 1}.items():
        make.add(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(DamagedFile, match="the 2 parts have 20 tensors, not 30 as it says"):
        open_checkpoint(part(tmp_path, 1, 2))


@pytest.mark.parametrize("count", [0, -1, "3", 1 << 31])
def test_counts_that_make_no_sense_are_named(tmp_path, count):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    if isinstance(count, int):
        writer.add_int64("split.count", count)
    else:
        writer.add_string("split.count", count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(DamagedFile, match=r"m\.gguf: split\.count is"):
        open_checkpoint(tmp_path / "m.gguf")
