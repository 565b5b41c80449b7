"""Kernels as a program of their own, without any library: for emulated processors, and
for counting instructions.

The program maps the file that is its standard input at a fixed address, runs the generated worker
loop over the context at its start, and ends: results are then in the file. Debian's packages link,
emulate and count.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from dielet.codegen import KernelKey, Target, host_target, jit
from dielet.codegen.library import kernel_unit
from dielet.codegen.worker import (
    CTX_BASES,
    CTX_BINDING,
    CTX_COUNTS,
    CTX_PIECES,
    CTX_PROGRESS,
    CTX_STAMPS,
    CTX_WORDS,
    LINE_WORDS,
    PIECE_WORDS,
    worker_module,
)

IMAGE = 0x200000000  # where the file is mapped, and how much of it
SPAN = 0x40000000
SHARED_FIXED = 0x11  # MAP_SHARED | MAP_FIXED

X86_START = f"""
.globl _start
.type _start, @function
_start:
    movabsq ${IMAGE}, %rdi
    movq ${SPAN}, %rsi
    movl $3, %edx
    movl ${SHARED_FIXED}, %r10d
    xorl %r8d, %r8d
    xorl %r9d, %r9d
    movl $9, %eax
    syscall
    movq %rax, %rdi
    xorl %esi, %esi
    call dielet_run
    xorl %edi, %edi
    movl $60, %eax
    syscall
.size _start, .-_start
.data  # without a segment to write, callgrind does not look for names
    .quad 0
"""
ARM_START = f"""
.globl _start
.type _start, @function
_start:
    ldr x0, ={IMAGE}
    ldr x1, ={SPAN}
    mov x2, #3
    mov x3, #{SHARED_FIXED}
    mov x4, #0
    mov x5, #0
    mov x8, #222
    svc #0
    mov x1, #0
    bl dielet_run
    mov x0, #0
    mov x8, #93
    svc #0
"""


@dataclass(frozen=True)
class Platform:
    """How programs for one architecture are linked and started."""

    start: str
    prefix: str  # of the names of binutils
    package: str  # Debian's, that holds them

    def tool(self, name: str) -> str:
        return f"{self.prefix}{name}"


PLATFORMS = {
    "x86_64": Platform(X86_START, "", "binutils"),
    "aarch64": Platform(ARM_START, "aarch64-linux-gnu-", "binutils-aarch64-linux-gnu"),
}
# The emulated processor has what the target asks for and, where there is such a model, no more.
EMULATORS = {
    "neon": ("qemu-aarch64", "-cpu", "neoverse-n1"),
    "neon_bf16": ("qemu-aarch64", "-cpu", "max"),
}


PACKAGES = {"qemu-aarch64": "qemu-user", "valgrind": "valgrind"}  # Debian's, by their programs


def architecture(target: Target) -> str:
    return target.triple.split("-")[0]


def runs_here(target: Target) -> bool:
    return architecture(target) == architecture(host_target())


def needs(architecture: str, *programs: str) -> pytest.MarkDecorator:
    """Skips a test where Debian's packages for linking and running such programs are missing."""
    platform = PLATFORMS[architecture]
    packages = {platform.tool(name): platform.package for name in ("as", "ld", "nm")}
    packages |= {name: PACKAGES[name] for name in programs}
    absent = {package for program, package in packages.items() if which(program) is None}
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(sorted(absent))}")


EMULATION = (pytest.mark.emulation, needs("aarch64", "qemu-aarch64"))


@dataclass(frozen=True)
class Piece:
    """One kernel call: operands as (number of a memory, offset), parameters, and its share."""

    kernel: KernelKey
    operands: Sequence[tuple[int, int]]
    params: Sequence[int]
    share: tuple[int, int, int] = (0, 1, 1)


@dataclass
class Image:
    """The file's content under construction: arrays, each with the address it will have."""

    parts: list[tuple[int, np.ndarray]] = field(default_factory=list)
    size: int = 0

    def place(self, content: np.ndarray, alignment: int = 64, phase: int = 0) -> int:
        """The address of a copy of `content`; `phase` beyond a multiple of the alignment."""
        at = self.size + (phase - self.size) % alignment
        self.parts.append((at, content))
        self.size = at + content.nbytes
        return IMAGE + at

    def words(self, values: Iterable[int]) -> int:
        return self.place(np.array([*values, 0], np.int64))

    def bytes(self) -> np.ndarray:
        whole = np.zeros(self.size, np.uint8)
        for at, content in self.parts:
            whole[at : at + content.nbytes] = content.view(np.uint8).reshape(-1)
        return whole


class Executable:
    """A static program of some kernels and the worker loop."""

    def __init__(self, keys: Sequence[KernelKey], target: Target) -> None:
        self.target = target
        self._folder = Path(tempfile.mkdtemp(prefix="dielet-freestanding-"))
        self.path = self._folder / "program"
        platform = PLATFORMS[architecture(target)]
        modules = [kernel_unit(key, target).write() for key in dict.fromkeys(keys)]
        modules.append(worker_module(target))
        objects = []
        for number, module in enumerate(modules):
            objects.append(self._folder / f"{number}.o")
            objects[-1].write_bytes(jit.emit_object(str(module), target))
        start = self._folder / "start.o"
        _check([platform.tool("as"), "-o", start, "-"], input=platform.start.encode())
        _check([platform.tool("ld"), "-static", "-o", self.path, start, *objects])
        lines = _check([platform.tool("nm"), self.path]).decode().splitlines()
        self.symbols = {name: int(at, 16) for at, _, name in map(str.split, lines)}

    def run(
        self,
        pieces: Sequence[Piece],
        memories: Sequence[np.ndarray],
        binding: Sequence[int],
        through: Sequence[str | Path] = (),
    ) -> None:
        """Run the pieces in order over `memories` (flat bytes), which hold the results then.

        through: a program that runs this one instead of the processor or its emulator.
        """
        image = Image()
        context = np.zeros(CTX_WORDS, np.int64)
        image.place(context)
        places = [image.place(m, 4096, m.ctypes.data % 4096) for m in memories]
        table = np.zeros((len(pieces), PIECE_WORDS), np.int64)
        for row, piece in zip(table, pieces, strict=True):
            operands = image.words(word for operand in piece.operands for word in operand)
            counts = (operands, len(piece.operands), image.words(piece.params))
            row[:7] = (self.symbols[piece.kernel.symbol], *counts, *piece.share)
        context[CTX_PIECES] = image.words([image.place(table)])
        context[CTX_COUNTS] = image.words([len(pieces)])
        context[CTX_BASES] = image.words(places)
        context[CTX_BINDING] = image.words(binding)
        context[CTX_PROGRESS] = image.words([0] * LINE_WORDS)
        context[CTX_STAMPS] = image.words([image.place(np.zeros((len(pieces), 2), np.int64))])
        assert image.size <= SPAN
        file = self._folder / "image"
        image.bytes().tofile(file)
        emulator = () if runs_here(self.target) else EMULATORS[self.target.name]
        with file.open("r+b") as opened:
            _check([*(through or emulator), self.path], stdin=opened)
        after = np.memmap(file, np.uint8, "r")
        for memory, place in zip(memories, places, strict=True):
            if memory.flags.writeable:
                memory[:] = after[place - IMAGE :][: memory.nbytes]

    def call(
        self,
        key: KernelKey,
        operands: Sequence[np.ndarray],
        params: Sequence[int],
        binding: Sequence[int],
        shares: Sequence[tuple[int, int, int]],
    ) -> None:
        """Run every share of one kernel over arrays that it reads and writes in place."""
        spans = _spans(operands)
        memories = [_raw(low, high) for low, high in spans]
        where = []
        for array in operands:
            at = array.ctypes.data
            number = next(n for n, (low, high) in enumerate(spans) if low <= at < high)
            where.append((number, at - spans[number][0]))
        self.run([Piece(key, where, params, share) for share in shares], memories, binding)


@cache
def executable(key: KernelKey, target: Target) -> Executable:
    return Executable([key], target)


def _spans(arrays: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """[first, last) addresses of the arrays, those that overlap as one."""
    spans: list[tuple[int, int]] = []
    for array in sorted(arrays, key=lambda a: a.ctypes.data):
        low = array.ctypes.data
        reach = zip(array.shape, array.strides, strict=True)
        high = low + sum((n - 1) * stride for n, stride in reach) + array.itemsize
        if spans and low < spans[-1][1]:
            low, high = spans[-1][0], max(high, spans.pop()[1])
        spans.append((low, high))
    return spans


def _raw(low: int, high: int) -> np.ndarray:
    return np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * (high - low)).from_address(low))


def _check(command: Sequence[str | Path], **options: object) -> bytes:
    done = subprocess.run([str(word) for word in command], capture_output=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        code = done.returncode
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        raise RuntimeError(f"{command[0]} ended with {how}: {done.stderr.decode().strip()}")
    return bytes(done.stdout)
