"""The cache of object code: kept, found, rebuilt when damaged, done without when unwritable."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import KernelKey, Library, cache, compile_kernels
from dielet.errors import InternalError

from .harness import HOST, PROTOTYPE

KEY = KernelKey.of("convert")


def works(library: Library) -> bool:
    x, y = np.full((1, 32), 1.5, np.float32), np.zeros((1, 32), np.uint16)
    tables = [np.array(n, np.int64) for n in ([a.ctypes.data for a in (x, y)], [32, 32, 32, 0, 1])]
    binding = np.array([0, 1], np.int64)
    PROTOTYPE(library.address(KEY))(*(t.ctypes.data for t in (*tables, binding)), 0, 1, 1)
    return bool((y == 0x3FC0).all())


def test_code_is_compiled_once(tmp_path: Path) -> None:
    first = compile_kernels([KEY, KEY], HOST, tmp_path)
    assert first.compiled == 2  # the kernel, and the worker loop
    again = compile_kernels([KEY], HOST, tmp_path)
    assert again.compiled == 0
    assert works(first) and works(again)
    assert not list(tmp_path.glob(".new-*"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_damaged_entries_are_built_again(tmp_path: Path, damage: str) -> None:
    compile_kernels([KEY], HOST, tmp_path)
    for entry in tmp_path.iterdir():
        content = bytearray(entry.read_bytes())
        content[len(content) // 2] ^= 0xFF
        bad = {"cut": content[:100], "flipped": content, "emptied": b""}[damage]
        entry.write_bytes(bytes(bad))
    library = compile_kernels([KEY], HOST, tmp_path)
    assert library.compiled == 2 and works(library)
    assert compile_kernels([KEY], HOST, tmp_path).compiled == 0


def test_a_cache_that_cannot_be_written_warns_once(tmp_path: Path) -> None:
    blocked = tmp_path / "file" / "cache"
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match=r"cannot write .*cache"):
        assert works(compile_kernels([KEY], HOST, blocked))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert works(compile_kernels([KEY], HOST, blocked))


def test_the_recipe_names_everything_that_decides_the_code() -> None:
    names = {cache.recipe("a", HOST), cache.recipe("b", HOST)}
    assert len(names) == 2
    assert cache.recipe("a", HOST) in names


def test_unknown_families_and_shapes_are_bugs_with_a_name(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="no kernel family 'sort'; there are rmsnorm"):
        compile_kernels([KernelKey.of("sort")], HOST, tmp_path)
    with pytest.raises(InternalError, match=r"does not fit its family .*group"):
        compile_kernels([KernelKey.of("quantize", grup=32)], HOST, tmp_path)
    with pytest.raises(InternalError, match="not in this library"):
        compile_kernels([KEY], HOST, tmp_path).address(KernelKey.of("select"))
