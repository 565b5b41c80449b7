"""A function of one address, written in the vector language: for work other than kernels."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from dielet import paths
from dielet.codegen.function import Module
from dielet.codegen.library import Library, Unit, load_units
from dielet.codegen.targets import host_target


@cache
def single_function(
    symbol: str, source: str, write: Callable[[bool], Module]
) -> Callable[[int], int]:
    """`i64 symbol(ptr)`, compiled once for this machine.

    source: the path of the file that says what it does, whose content names it in the cache.
    write: given whether the target has a multiply-add that rounds once.
    """
    library = _library(symbol, source, write)
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.symbol(symbol))


@cache
def _library(symbol: str, source: str, write: Callable[[bool], Module]) -> Library:
    """Kept for as long as the process lives, since the function is code in it."""
    kept = paths.cache_dir("native")
    target = host_target(kept)
    name = f"{symbol} {hashlib.sha256(Path(source).read_bytes()).hexdigest()}"
    return load_units([Unit(name, (symbol,), lambda: write(target.fused))], target, kept)
