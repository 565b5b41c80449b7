"""Measure the `host` device: bandwidth, kernels by format and shape, overheads, signals.

Only single commands and chains of them are timed, never a model, so that a prediction of a model
is one.  Linears read their weights from a mapped file that no cache holds, as they do in a model.
"""

from __future__ import annotations

import itertools
import platform
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter_ns

import numpy as np

import dielet
from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.spec import ModelSpec
from dielet.codegen import host_target
from dielet.devices import device_text
from dielet.formats.cache import position_bytes
from dielet.formats.packed import WeightFormat
from dielet.formats.parallel import available_cores
from dielet.host import load_runtime
from dielet.host.limits import probes
from dielet.host.runtime import Execution
from dielet.image import CompileOptions, compile_checkpoint
from dielet.program.buffers import make_buffer
from dielet.program.commands import ENTRIES
from dielet.program.commands import Run as Bound
from dielet.program.commands.attention import CACHE_DTYPES
from dielet.program.commands.linear import weight_attrs
from dielet.program.memory import Arena
from dielet.program.types import Attr, Command, Operand, Region
from dielet.simulator.microbench import CACHE, WEIGHTS, Bench

ROWS = (1, 2, 4, 8, 16, 32, 128)
WITH_RESIDUAL = (1, 16, 128)
DEPTHS = (512, 2048, 6144)
WIDTHS = (512, 2048)
RESULTS = 8
SETS = 4  # of operands that the small commands take in turn: together more than L2
REPEATS = 40
CHAIN = 100
LAUNCHES = 150
HEAD = 1 << 20  # bytes from one head's cache to the next, as in a model for thousands of positions
# Few commands, and in each of its programs more weights than the caches hold.
BROAD = ModelSpec(
    model_type="llama", hidden=1024, layers=2, heads=8, kv_heads=8, head_dim=128,
    intermediate=8192, vocab=65536, norm_eps=1e-6, rope_theta=1e4, max_position=512, tied=True,
    qk_norm=False,
)  # fmt: skip
FORMATS = ("bf16", "int8g32m", "int8g32", "int8g64", "int8g128", "int4g32m", "int4g32", "int4g128")
# Head size, query heads and KV heads of a chiplet.
POSITIONED = ((64, 4, 2), (128, 8, 4))
# Head size, queries per KV head, number format of the cache.
SHAPES = ((128, 2, "bf16"), (64, 3, "bf16"), (128, 4, "bf16"), (128, 2, "int8"), (64, 3, "int8"))
PEAKS = {"int8": "int8", "bf16": "bf16", "fp32": "f32"}  # a probe's name and the device file's
Say = Callable[[str], None]


@dataclass
class Measured:
    """What was found: rates in operations and bandwidths in bytes per second, times in ns."""

    rates: dict[str, float] = field(default_factory=dict)
    alone: float = 0.0
    together: float = 0.0
    setup: float = 0.0
    signal: float = 0.0
    launch: float = 0.0
    latency: float = 0.0
    alongside: float = 1.0
    peaks: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Scope:
    """What is measured: formats and depths of linears, and rows of everything."""

    formats: tuple[str, ...] = FORMATS
    depths: tuple[int, ...] = DEPTHS
    rows: tuple[int, ...] = ROWS


def calibrate(say: Say = lambda text: None, scope: Scope | None = None) -> Measured:
    """Measure this machine; takes about a minute, and wants it to be quiet."""
    bench, found, scope = Bench(), Measured(), scope or Scope()
    workers = available_cores()
    found.setup, found.signal = _overheads(bench, workers)
    say(f"a command costs {found.setup:.0f} ns, a signal between cores {found.signal:.0f} ns")
    found.launch = _launch(workers)
    say(f"a program costs {found.launch / 1e3:.1f} us")
    found.latency = _latency(bench)
    say(f"a stream from memory starts in {found.latency:.0f} ns")
    found.alongside = _alongside(bench, workers)
    say(f"beside others a core keeps {found.alongside:.0%} of its speed")
    _measure_peaks(found, say)
    _measure_linears(bench, found, scope, say)
    _measure_memory(bench, found, workers, say)
    for D, G, kv in SHAPES:
        for rows, positions in ((1, 64), (1, 1024), (128, 128), (128, 1024)):
            if rows not in scope.rows:
                continue
            attentions = _attentions(D, G, rows, positions, kv)
            commands = _after_weights(attentions) if rows == 1 else list(attentions)
            _rate(bench, found, commands, rows, say, positions - rows)
    for rows in {1, 128} & set(scope.rows):
        for commands in _small(rows):
            _rate(bench, found, commands, rows, say)
    return found


def _measure_peaks(found: Measured, say: Say) -> None:
    """Operations per second of one core by number format, for the commands that have no rates."""
    for kind, name in PEAKS.items():
        found.peaks[name] = probes().rate(kind, 1)
        say(f"{name}: one core computes at most {found.peaks[name] / 1e9:.0f} GOP/s")


def _measure_linears(bench: Bench, found: Measured, scope: Scope, say: Say) -> None:
    for fmt, K, rows in itertools.product(scope.formats, scope.depths, scope.rows):
        _rate(bench, found, _some(_linears(fmt, K, rows), rows), rows, say)
        if rows in WITH_RESIDUAL:
            _rate(bench, found, _some(_linears(fmt, K, rows, residual=True), rows), rows, say)


def _some(linears: Iterable[Command], rows: int) -> list[Command]:
    """All of them, where they are bound by memory; enough of them, where they take long."""
    commands = list(linears)
    return commands if rows == 1 else commands[: len(commands) // 4]


def _measure_memory(bench: Bench, found: Measured, workers: int, say: Say) -> None:
    """Bandwidth of the weights' memory, of one core and of all: by the linears that it bounds."""
    for fmt in ("bf16", "int8g128"):
        alone, together = weight_bandwidth(bench, workers, fmt)
        found.alone = max(found.alone, alone)
        found.together = max(found.alone, found.together, together)
        say(f"{fmt}: weights at {alone / 1e9:.1f} GB/s alone, {together / 1e9:.1f} GB/s together")


def weight_bandwidth(bench: Bench, workers: int, fmt: str = "bf16") -> tuple[float, float]:
    """Bytes per second that linears of one row read weights with: one core's, and all workers',
    who wait for each other after each, as in a model."""
    commands = list(_linears(fmt, 2048, 1, results=1))
    nbytes, every = commands[0].operand("w").region.nbytes, [True] * len(commands)
    alone = nbytes / bench.time(commands, 1).command(every) * 1e9
    return alone, nbytes * len(every) / bench.time(commands, workers).whole() * 1e9


def _rate(
    bench: Bench, found: Measured, commands: list[Command], rows: int, say: Say, past: int = 0
) -> None:
    """Operations per second of a kind of command, its overhead taken off."""
    command = commands[0]
    streams = any(o.region.space in ("weights", "kv") for o in command.operands)
    fixed = found.setup + (found.latency if streams else 0.0)
    alike = [c.kind == command.kind for c in commands]
    nanoseconds = max(bench.time(commands, 1, past, rows).command(alike) - fixed, 1.0)
    entry = ENTRIES[command.kind]
    run = Bound(past, rows)
    ops, depth = sum(entry.ops(command, run).values()), entry.depth(command, run)
    name = f"{command.kind} {entry.variant(command)}{f'.k{depth}' if depth else ''} {rows}"
    found.rates[name] = ops / nanoseconds * 1e9
    say(f"{name}: {found.rates[name] / 1e9:.3g} GOP/s, {nanoseconds / 1e3:.3g} us")


def _overheads(bench: Bench, workers: int) -> tuple[float, float]:
    """ns from one trivial command to the next on one core, and for a signal to reach another."""
    one = Operand("x", Region("shared", 0, 1, 64, 64), "f32")
    trivial = Command("device_sync", 0, "nothing", 0, (one,), {})
    apart = [
        Command("device_sync", 0, "", 0, (Operand("x", line, "f32"),), {})
        for line in (Region("shared", 64 * n, 1, 64, 64) for n in range(400))
    ]
    setup = bench.time(apart, 1).step()
    if workers == 1:
        return setup, 0.0
    # Every command touches the same bytes, and they alternate between two cores.
    chain = bench.time([trivial] * 400, 2, together=True)
    return setup, max(chain.whole() / 400 - setup, 0.0)


def _latency(bench: Bench) -> float:
    """ns that a linear on weights in memory takes whatever their number: from two sizes."""
    found = []
    for fmt in ("bf16", "int8g128", "int4g32"):
        few, many = (
            bench.time(list(_linears(fmt, 512, 1, outputs))[:300], 1).command([True] * 300)
            for outputs in (256, 512)
        )
        found.append(2 * few - many)
    return max(float(np.median(found)), 0.0)


def _alongside(bench: Bench, workers: int) -> float:
    """The share of its speed that one of several workers keeps while all of them compute.

    Each of the linears in a chain is divided among the workers, who wait for each other after it,
    as in a model: what they lose to shared caches and clocks, and to their being uneven.
    """
    found = []
    for fmt in ("bf16", "int8g128"):
        chain = list(_linears(fmt, 512, 128, 1024, results=1))[:CHAIN]
        alone, shared = (bench.time(chain, n, 0, 128, rounds=15).whole() for n in (1, workers))
        found.append(alone / workers / shared)
    return min(float(np.median(found)), 1.0)


def _launch(workers: int) -> float:
    """ns from the end of one program to the start of the next.

    What the host does between them (look up, set up, choose) does not depend on the model's size,
    but on whether its own code and data are still in the caches: as in any model they are not.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = CompileOptions(
            weights="int8", max_seq_len=512, kv_ladder=(512,), random_weights=1
        )
        compile_checkpoint(RandomCheckpoint(BROAD), Path(folder) / "m", options)
        runtime = load_runtime(Path(folder) / "m", workers)
        state, token = runtime.new_state(), np.ones(1, np.int32)
        busy = []

        def note(execution: Execution) -> None:
            stamps = [s for s in execution.tables.stamps if s[-1, 1]]
            busy.append(max(s[-1, 1] for s in stamps) - min(s[0, 0] for s in stamps))

        runtime.observer = note
        ends = []
        for _ in range(LAUNCHES):
            runtime.forward(state, token)
            ends.append((runtime.ticks(), perf_counter_ns(), sum(busy)))
        runtime.close()
    steps = np.diff(np.array(ends, np.float64), axis=0)
    rate = float(np.median(steps[:, 1] / steps[:, 0]))  # ns per tick
    return float(np.median(steps[:, 1] - steps[:, 2] * rate)) / 2  # two programs a step


def _linears(
    fmt_name: str,
    K: int,
    rows: int,
    outputs: int = 2048,
    residual: bool = False,
    results: int = RESULTS,
) -> Iterator[Command]:
    """Linears of K inputs over weights that are more than any cache holds.

    They alternate between two halves of the weights, as the shares of two chiplets do, and their
    results between `results` places, as in a model, where a chunk's are not all in L2.
    """
    fmt, arena = WeightFormat.parse(fmt_name), Arena()
    kind = f"int8g{fmt.group}" if fmt.integer else "bf16"
    x = make_buffer("shared", arena, rows, K, kind).operands("x", (0, rows), (0, K))
    ys = [
        make_buffer("shared", arena, rows, outputs, "f32").operands("y", (0, rows), (0, outputs))
        for _ in range(results)
    ]
    size = fmt.nbytes(outputs, K)
    attrs: dict[str, Attr] = {
        "K": K, **weight_attrs(fmt),
        "T": rows if rows == 1 else max(rows, 16), "residual": residual, "bias": False,
    }  # fmt: skip
    half = WEIGHTS // size // 2
    for n in range(2 * half):
        at = (n // 2 + n % 2 * half) * size
        w = Operand("w", Region("weights", at, 1, size, size), "packed")
        y = ys[n % results]
        old = ys[(n + results // 2) % results][0].region
        added = [Operand("residual", old, "f32")] * residual
        yield Command("linear", 0, "linear", 0, (*x, w, *added, *y), attrs)


def _attentions(D: int, G: int, rows: int, positions: int, kv: str = "bf16") -> Iterator[Command]:
    """Attention over successive caches; a chunk has just written its own, one row has not."""
    heads, arena = 3, Arena()
    columns = heads * G * D
    q = make_buffer("shared", arena, rows, columns, "bf16").operands("q", (0, rows), (0, columns))
    y = make_buffer("shared", arena, rows, columns, "bf16").operands("y", (0, rows), (0, columns))
    width = positions * position_bytes(kv, D)
    head = HEAD if rows == 1 else width
    attrs: dict[str, Attr] = {
        "D": D, "G": G, "T": rows if rows == 1 else max(rows, 16), "out": "bf16", "batch": False,
    }  # fmt: skip
    if kv != "bf16":
        attrs["kv"] = kv
    for n in range(CACHE // (2 * heads * head)):
        k, v = (
            Operand(
                role,
                Region("kv", (2 * n + i) * heads * head, heads, head, width),
                CACHE_DTYPES[kv],
            )
            for i, role in enumerate(("k_cache", "v_cache"))
        )
        yield Command("attention", 0, "attention", 0, (*q, k, v, *y), attrs)


def _after_weights(commands: Iterable[Command]) -> list[Command]:
    """Each command after linears that leave nothing of its cache in the processor's caches."""
    linears = itertools.cycle(_linears("int8g128", 2048, 1))
    return [c for command in commands for c in (command, *itertools.islice(linears, 2))]


def _small(rows: int) -> Iterator[list[Command]]:
    """The commands between the linears; in one row on numbers that are in the caches."""
    many = partial(_many, rows)
    for out, group in (("int8", 32), ("int8", 128), ("bf16", 0)):
        kind = f"int8g{group}" if group else out
        for K in WIDTHS:
            attrs: dict[str, Attr] = {"K": K, "eps": 1e-6, "out": out, "group": group, "row0": 0}
            norms = many("rmsnorm", [("x", K, "f32"), ("y", K, kind)], attrs, _norm_weights(K))
            yield _after_weights(norms) if rows == 1 else norms
        wide = [("gate", 3072, "f32"), ("up", 3072, "f32"), ("y", 3072, kind)]
        yield many("silu_mul", wide, {"out": out, "group": group})
        if group:
            both = [("x", 1024, "f32"), ("y", 1024, kind)]
            yield many("quantize", both, {"group": group, "row0": 0})
    for D, heads, kv_heads in POSITIONED:
        for norm in (False, True):
            yield from _positioned(rows, D, heads, kv_heads, norm)
    if rows == 1:
        x = [Operand("x", Region("io", n << 17, 1, 1 << 17, 1 << 17), "f32") for n in range(SETS)]
        y = Operand("y", Region("shared", 0, 1, 64, 16), "i32")
        yield many("select", [], {"first_column": 0}, [[one, y] for one in x])


def _norm_weights(K: int) -> list[list[Operand]]:
    """Weights of norms: far apart in the file, so that a step finds none of them in a cache."""
    places = (Region("weights", n << 20, 1, 4 * K, 4 * K) for n in range(REPEATS))
    return [[Operand("weight", place, "f32")] for place in places]


def _many(
    rows: int,
    kind: str,
    values: list[tuple[str, int, str]],
    attrs: dict[str, Attr],
    others: Sequence[Sequence[Operand]] = ((),),
) -> list[Command]:
    """Commands on several sets of values (role, columns, number format), and `others`, in turn."""
    arena = Arena()
    sets = [
        [
            operand
            for role, columns, fmt in values
            for operand in make_buffer("shared", arena, rows, columns, fmt).operands(
                role, (0, rows), (0, columns)
            )
        ]
        for _ in range(SETS)
    ]
    return [
        Command(kind, 0, "", 0, _in_order(kind, [*sets[n % SETS], *others[n % len(others)]]), attrs)
        for n in range(max(REPEATS, len(others)))
    ]


def _positioned(
    rows: int, D: int, heads: int, kv_heads: int, norm: bool
) -> Iterator[list[Command]]:
    """Rotations, and appends to caches that are not in any cache of the processor."""
    tables = [Operand(t, Region(t, 0, 256, D * 2, D * 2), "f32") for t in ("cos", "sin")]
    tables += [Operand("norm", Region("shared", 0, 1, 4 * D, 4 * D), "f32")] * norm
    attrs: dict[str, Attr] = {"D": D, "norm": norm, "eps": 1e-6, "batch": False}
    turned = [("x", heads * D, "f32"), ("y", heads * D, "bf16")]
    yield _many(rows, "rotary", turned, {**attrs, "scale": 0.1}, [tables])
    caches = [
        [
            Operand(role, Region("kv", (2 * n + i) * kv_heads * HEAD, kv_heads, HEAD, 512 * D),
                    "bf16")
            for i, role in enumerate(("k_cache", "v_cache"))
        ] + tables
        for n in range(CACHE // (2 * kv_heads * HEAD))
    ]  # fmt: skip
    new = [("k", kv_heads * D, "f32"), ("v", kv_heads * D, "f32")]
    appends = _many(rows, "kv_append", new, attrs, caches)
    yield _after_weights(appends) if rows == 1 else appends


def _in_order(kind: str, operands: list[Operand]) -> tuple[Operand, ...]:
    order = ENTRIES[kind].operand_order()
    return tuple(sorted(operands, key=lambda operand: order.index(operand.role)))


def host_toml(found: Measured) -> str:
    """The host's device file with the figures of this machine."""
    text = device_text("host")
    made = f"{platform.machine()}, target {host_target().name}, dielet {dielet.__version__}"
    text = re.sub(
        r"\A(#.*\n)+", f"# Measured by `dielet devices host --calibrate`: {made}.\n", text
    )
    head, _, memories = text.partition("[memory.dram]\n")
    head = _set(head, "about", '"this machine\'s cores, as measured here"')
    head = _set(head, "setup", _time(found.setup))
    head = _set(head, "launch", _time(found.launch)) if found.launch else head
    head = _set(head, "dram", _bandwidth(found.alone))
    head = _set(head, "alongside", f"{found.alongside * 100:.0f}  # measured: percent")
    for name, rate in found.peaks.items():
        head = _set(head, name, f'"{rate / 1e6:.1f} MOP/s"  # measured: a probe on one core')
    memories = _set(memories, "bandwidth", _bandwidth(found.together))
    memories = _set(memories, "latency", _time(found.latency))
    memories = _set(memories, "engine", _time(found.signal))
    memories = _set(memories, "chiplet", _time(found.signal))
    rates = "".join(
        f'"{name}" = "{rate / 1e6:.1f} MOP/s"  # measured\n' for name, rate in found.rates.items()
    )
    return f"{head}[engine.core.rates]\n{rates}\n[memory.dram]\n{memories}"


def _set(text: str, key: str, value: str) -> str:
    """The first line of `key` with another value."""
    return re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)


def _bandwidth(value: float) -> str:
    return f'"{value / 1e9:.2f} GB/s"  # measured'


def _time(nanoseconds: float) -> str:
    return f'"{nanoseconds:.1f} ns"  # measured'
