"""Kernels by key: from the cache, or generated and compiled now; loaded, and found by address."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec

from dielet.codegen import cache, worker
from dielet.codegen.flat import Flat, Mapped, NotFlat, flatten
from dielet.codegen.function import Module
from dielet.codegen.kernel import KernelKey
from dielet.codegen.targets.base import Target
from dielet.errors import InternalError


@dataclass(frozen=True)
class Unit:
    """One module of code: what it is called in the cache, what it exports, how it is written."""

    name: str
    symbols: tuple[str, ...]
    write: Callable[[], Module]


class Loaded(Protocol):
    """Code in executable memory, which stays there for as long as this lives."""

    addresses: dict[str, int]


class Library:
    """Loaded code. Addresses stay valid for as long as the library lives."""

    def __init__(self, loaded: Sequence[Loaded], target: Target, compiled: int) -> None:
        self._loaded = tuple(loaded)
        self._addresses = {s: address for part in loaded for s, address in part.addresses.items()}
        self.target = target
        self.compiled = compiled  # modules that were not in the cache

    def address(self, key: KernelKey) -> int:
        """Address of `void kernel(operands, params, binding, lo_num, hi_num, den)`."""
        return self.symbol(key.symbol, str(key))

    def symbol(self, name: str, label: str = "") -> int:
        if name not in self._addresses:
            raise InternalError(f"kernel {label or name} is not in this library")
        return self._addresses[name]

    # The worker loop as ctypes functions, which release the GIL; see `dielet.codegen.worker`.

    @cached_property
    def run(self) -> Callable[[int, int], int]:
        return self._function("dielet_run", None, 2)

    @cached_property
    def serve(self) -> Callable[[int, int, int], int]:
        return self._function("dielet_serve", None, 3)

    @cached_property
    def execute(self) -> Callable[[int, int, int], int]:
        return self._function("dielet_execute", None, 3)

    @cached_property
    def stop(self) -> Callable[[int], int]:
        return self._function("dielet_stop", None, 1)

    @cached_property
    def clock(self) -> Callable[[], int]:
        """Ticks of the clock that stamps are taken from."""
        return self._function("dielet_clock", ctypes.c_int64, 0)

    def _function(self, name: str, result: type | None, count: int) -> Callable[..., int]:
        prototype = ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * count)
        return prototype(self.symbol(name))


def compile_kernels(keys: Iterable[KernelKey], target: Target, cache_dir: Path) -> Library:
    """The kernels of `keys` and the worker loop, for a target that this machine can run.

    Code comes from `cache_dir` where it is there, and goes there where it is not.
    """
    units = [kernel_unit(key, target) for key in dict.fromkeys(keys)]
    units.append(Unit("worker", worker.SYMBOLS, lambda: worker.worker_module(target)))
    return load_units(units, target, cache_dir)


def kernel_unit(key: KernelKey, target: Target) -> Unit:
    def write() -> Module:
        from dielet.codegen.kernels import generate  # which a full cache makes needless

        module = Module(target.fused)
        generate(module, target, key)
        return module

    return Unit(str(key), (key.symbol,), write)


def load_units(units: Sequence[Unit], target: Target, cache_dir: Path) -> Library:
    """The code of `units`. LLVM is loaded only where something has to be compiled or linked."""
    modules, compiled = [], 0
    for unit in units:
        name = cache.recipe(unit.name, target)
        module = _read(cache_dir, name, unit.symbols)
        if module is None:
            module = _emit(unit, target)
            cache.write(cache_dir, name, msgspec.msgpack.encode(module))
            compiled += 1
        modules.append(module)
    return Library(_load(modules, units, target), target, compiled)


def _read(cache_dir: Path, name: str, symbols: Sequence[str]) -> Flat | bytes | None:
    """Flat code with `symbols`, or an object for LLVM to load; None if it must be made again."""
    content = cache.read(cache_dir, name)
    if content is None:
        return None
    try:
        module = msgspec.msgpack.decode(content, type=Flat | bytes)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if isinstance(module, Flat) and not module.has(symbols):
        return None
    return module


def _emit(unit: Unit, target: Target) -> Flat | bytes:
    from dielet.codegen.jit import emit_object

    code = emit_object(str(unit.write()), target)
    try:
        return flatten(code)
    except NotFlat:
        return code


def _load(
    modules: Sequence[Flat | bytes], units: Sequence[Unit], target: Target
) -> Sequence[Loaded]:
    mapped = Mapped([module for module in modules if isinstance(module, Flat)])
    pairs = zip(modules, units, strict=True)
    linked = [(module, unit) for module, unit in pairs if isinstance(module, bytes)]
    if not linked:
        return [mapped]
    from dielet.codegen.jit import Linked

    symbols = [symbol for _, unit in linked for symbol in unit.symbols]
    return [mapped, Linked([module for module, _ in linked], symbols, target)]
