"""What this machine can do at most: generated loops that only read, only multiply, only add.

They are the yardstick beside measured kernels, so they use the same target and the same compiler.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from dielet.codegen.function import Module, Pointer
from dielet.codegen.library import Unit, load_units
from dielet.codegen.targets.base import Target
from dielet.codegen.values import F32, I32, I64, PTR

STEPS = 8  # unrolled steps of the multiplying loop
COLS = 2  # vectors of weights in its tile
LINE = 64
STREAMS = 4
AHEAD = 2048  # bytes between a read and its prefetch
TIMES = 3  # that each probe is timed

# kind: (integer accumulators, operations per 32-bit lane)
DOTS = {"int8": (True, 8), "bf16": (False, 4), "fp32": (False, 2)}


def rows(t: Target) -> int:
    """Rows of the multiplying tile: as many sums as registers allow hide the longest latency."""
    return (t.registers - 8) // COLS


def read_loop(module: Module, t: Target) -> None:
    """i32 probe_read(ptr data, i64 bytes): all of them into sums, as several streams."""
    k = module.function("probe_read", [PTR, I64], I32)
    part = k.args[1] // (4 * STREAMS)
    streams = [Pointer(k.args[0], I32).at(part * s) for s in range(STREAMS)]
    words, vectors = LINE // 4, LINE // 4 // t.lanes
    sums = k.cells(STREAMS, vectors, of=I32.x(t.lanes))
    for at in sums:
        sums[at] = 0
    with k.loop(0, part, 4 * words) as i:
        for line in range(4):
            for s, stream in enumerate(streams):
                stream.at(i + (line * words + AHEAD // 4)).prefetch()
                for v in range(vectors):
                    numbers = stream.load(i + (line * words + v * t.lanes), t.lanes)
                    sums[s, v] = sums[s, v] ^ numbers
    total = k.const(I32.x(t.lanes), 0)
    for at in sums:
        total = total ^ sums[at]
    k.ret(k.sum(total))


def dot_loop(module: Module, t: Target, kind: str) -> None:
    """i32 probe_<kind>(ptr operands, i64 turns): a register tile, its weights from L1."""
    k = module.function(f"probe_{kind}", [PTR, I64], I32)
    data = Pointer(k.args[0], I32)
    type_ = (I32 if DOTS[kind][0] else F32).x(t.lanes)
    acc = k.cells(rows(t), COLS, of=type_)
    for at in acc:
        acc[at] = 0
    xs = [data.load((128 + r) * t.lanes, t.lanes) for r in range(min(4, rows(t)))]
    with k.loop(k.args[1]) as turn:
        # Weights move with the turn, or the compiler would multiply only once.
        here = data.at(turn % 4 * t.lanes)
        for step in range(STEPS):
            weights = [here.load((step * COLS + c) * t.lanes, t.lanes) for c in range(COLS)]
            for r in range(rows(t)):
                x = xs[r % len(xs)]
                for c, w in enumerate(weights):
                    if kind == "int8":
                        acc[r, c] = t.dot4(k, acc[r, c], w, x)
                    elif kind == "bf16":
                        acc[r, c] = t.dot2(k, acc[r, c], w, x)
                    else:
                        acc[r, c] = k.fma(w.bits(type_), x.bits(type_), acc[r, c])
    total = k.const(type_, 0)
    for at in acc:
        total = total + acc[at]
    k.ret(k.sum(total).bits(I32))


def probe_module(t: Target) -> Module:
    module = Module(t.fused)
    read_loop(module, t)
    for kind in DOTS:
        dot_loop(module, t, kind)
    return module


class Probes:
    """The loops, compiled for a target that runs here."""

    def __init__(self, target: Target, cache_dir: Path) -> None:
        symbols = ("probe_read", *(f"probe_{kind}" for kind in DOTS))
        unit = Unit("probes", symbols, lambda: probe_module(target))
        self._library = load_units([unit], target, cache_dir)
        self._target = target
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)
        self._call = {s: prototype(self._library.symbol(s)) for s in symbols}
        operands = np.full(4096 + LINE // 4, 0x01010101, np.int32)
        self._operands = operands[-operands.ctypes.data % LINE // 4 :]  # whole lines

    def read(self, address: int, nbytes: int, threads: int) -> float:
        """Bytes per second at which `threads` threads read this memory once, a part each."""
        part = nbytes // threads // (16 * LINE) * (16 * LINE)
        read = self._call["probe_read"]

        def work(thread: int) -> None:
            read(address + thread * part, part)

        return threads * part / _together(work, threads)

    def rate(self, kind: str, threads: int, seconds: float = 0.02) -> float:
        """Operations per second (a multiplication and an addition are two) of `threads` threads.

        kind: "int8" (u8 * s8 dot), "bf16" (dot of pairs) or "fp32" (multiply-add).
        """
        loop, operands = self._call[f"probe_{kind}"], self._operands.ctypes.data
        turns = 1000
        start = time.perf_counter()
        loop(operands, turns)
        turns = max(1, int(turns * seconds / TIMES / (time.perf_counter() - start)))

        def work(thread: int) -> None:
            loop(operands, turns)

        tile = rows(self._target) * COLS * self._target.lanes
        operations = DOTS[kind][1] * tile * STEPS * turns
        return threads * operations / _together(work, threads)


def _together(work: Callable[[int], None], threads: int) -> float:
    """Seconds from when all threads begin to when the last has ended: the median of three times.

    A thread that was just made may share a core with another for some milliseconds.
    """
    barrier = threading.Barrier(threads)
    begun, ended = ([[0.0] * threads for _ in range(TIMES)] for _ in range(2))

    def one(thread: int) -> None:
        for turn in range(TIMES):
            barrier.wait()
            begun[turn][thread] = time.perf_counter()
            work(thread)
            ended[turn][thread] = time.perf_counter()

    others = [threading.Thread(target=one, args=(t,)) for t in range(1, threads)]
    for thread in others:
        thread.start()
    one(0)
    for thread in others:
        thread.join()
    return median(max(e) - min(b) for b, e in zip(begun, ended, strict=True))
