"""Flat code: the same functions as LLVM's own linking, loaded without LLVM; what is refused."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dielet.codegen import TARGETS, Target, host_target, jit, processor
from dielet.codegen.flat import Flat, Mapped, NotFlat, flatten
from dielet.codegen.function import Module, Pointer
from dielet.codegen.math import exp2
from dielet.codegen.values import F32, PTR

from .harness import HOST

needs_x86 = pytest.mark.skipif(
    not HOST.triple.startswith("x86_64-") or "linux" not in HOST.triple,
    reason="other systems let LLVM link",
)


def exponential(target: Target) -> Module:
    """Sixteen exponentials: code that refers to constants of several sizes."""
    module = Module(target.fused)
    k = module.function("exponential", [PTR, PTR])
    source, result = (Pointer(argument, F32) for argument in k.args)
    result.store(0, exp2(k, source.load(0, 16)))
    return module


def values(loaded: Mapped | jit.Linked, x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    address = loaded.addresses["exponential"]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(address)(x.ctypes.data, y.ctypes.data)
    return y


@needs_x86
def test_flat_code_computes_what_linked_code_does() -> None:
    content = jit.emit_object(str(exponential(HOST)), HOST)
    module = flatten(content)
    x = np.linspace(-20, 20, 16, dtype=np.float32)
    # Twice: the second copy begins elsewhere, and so do its constants.
    found = values(Mapped([module, renamed(module, "other")]), x)
    assert np.array_equal(found, values(jit.Linked([content], ["exponential"], HOST), x))
    assert np.allclose(found, np.exp2(x), rtol=1e-4)
    second = Mapped([renamed(module, "other"), module])
    assert np.array_equal(values(second, x), found)


def renamed(module: Flat, name: str) -> Flat:
    return Flat(module.code, {name: module.symbols["exponential"]})


def test_objects_of_other_processors_are_left_to_llvm() -> None:
    content = jit.emit_object(str(exponential(TARGETS["neon"])), TARGETS["neon"])
    with pytest.raises(NotFlat, match="not an ELF object for x86-64"):
        flatten(content)


@needs_x86
def test_code_that_calls_out_is_left_to_llvm() -> None:
    text = "declare void @away()\ndefine void @f() { call void @away()\n ret void }"
    with pytest.raises(NotFlat, match="'away'"):
        flatten(jit.emit_object(text, HOST))


@needs_x86
def test_a_warm_start_loads_no_llvm(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from dielet.codegen import KernelKey, compile_kernels, host_target\n"
        "cache = Path(sys.argv[1])\n"
        "library = compile_kernels([KernelKey.of('convert')], host_target(cache), cache)\n"
        "print(library.compiled, 'llvmlite.binding' in sys.modules)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [run.stdout.split() for run in runs] == [["2", "True"], ["0", "False"]]


def test_another_processor_is_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "CPUINFO", system)
    kept = tmp_path / "cache"

    def entries(flags: str) -> int:
        system.write_text(
            f"processor : 0\ncpu MHz : {len(flags)}\nflags : {flags}\n\nprocessor : 1\n"
        )
        assert host_target(kept) == host_target()
        return len(list(kept.iterdir()))

    assert [entries("sse avx"), entries("sse avx"), entries("sse")] == [1, 1, 2]
    system.unlink()
    assert host_target(kept) == HOST  # nothing to know it by: LLVM is asked
