"""Make the tables of docs/performance.md on this machine: decode and prefill beside the limits.

    python tools/performance.py [formats] [contexts] [sizes] [cores] [chiplets] [batch]

Models have the exact shapes of Qwen3 and random weights; they are compiled into a temporary folder.
Run it on a machine that does nothing else; each line is a median over rounds in turns with probes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from dielet.host import Runtime, load_runtime
from dielet.host.measure import (
    STEPS,
    decode_beside_probe,
    decode_bytes,
    filled,
    measure,
    probed_memory,
)
from dielet.host.memory import Bytes
from dielet.image import CompileOptions, compile_model

SHAPES = {  # hidden, layers, query heads, intermediate; 8 KV heads of 128, vocabulary 151,936, tied
    "0.6B": (1024, 28, 16, 3072),
    "1.7B": (2048, 28, 16, 6144),
    "4B": (2560, 36, 32, 9728),
}
ROUNDS = 7
BATCHES = (1, 2, 4, 8, 16)


def config(folder: Path, shape: str) -> Path:
    hidden, layers, heads, intermediate = SHAPES[shape]
    path = folder / f"qwen3-{shape}.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "qwen3",
                "hidden_size": hidden,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": intermediate,
                "vocab_size": 151936,
                "max_position_embeddings": 40960,
                "rope_theta": 1000000,
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": True,
                "hidden_act": "silu",
            }
        )
    )
    return path


@contextmanager
def loaded(
    folder: Path,
    shape: str,
    weights: str,
    chiplets: int = 2,
    threads: int | None = None,
    kv: str = "bf16",
) -> Iterator[Runtime]:
    """A model of that shape, compiled once for all tables."""
    out = folder / f"{shape}-{weights}-{kv}-{chiplets}"
    if not out.exists():
        options = CompileOptions(
            weights=weights,
            kv=kv,
            chiplets=chiplets,
            max_seq_len=32768,
            batch_sizes=BATCHES,
            random_weights=0,
        )
        compile_model(config(folder, shape), out, options)
    runtime = load_runtime(out, threads)
    try:
        yield runtime
    finally:
        runtime.close()


def line(runtime: Runtime, label: str, contexts: tuple[int, ...], prompt: int = 512) -> str:
    m = measure(runtime, prompt, contexts, ROUNDS)
    cells = [label, f"{m.bandwidth.value:.1f}"]
    cells += [f"{m.decode[c].value:.1f} ({m.decode[c].share:.0%})" for c in contexts]
    cells.append(f"{m.prefill.value:.0f} ({m.prefill.share:.0%} of {m.prefill_kind})")
    return f"| {' | '.join(cells)} |"


def header(first: str, contexts: tuple[int, ...]) -> str:
    names = [first, "read GB/s", *(f"decode at {c}" for c in contexts), "prefill 512"]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def formats(folder: Path) -> None:
    print(header("weights", (64, 1024)))
    for weights in ("bf16", "int8", "int4"):
        with loaded(folder, "1.7B", weights) as runtime:
            print(line(runtime, weights, (64, 1024)), flush=True)


def contexts(folder: Path) -> None:
    """Milliseconds of a decode step with either cache in turns, and what its bytes would take."""
    lengths = (128, 1024, 4096, 8192, 16384, 32000)
    names = ["weights, cache", *(f"at {length}" for length in lengths)]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    memory = probed_memory()
    for weights in ("int8", "int4"):
        with (
            loaded(folder, "1.7B", weights) as bf16,
            loaded(folder, "1.7B", weights, kv="int8") as int8,
        ):
            runtimes = {"bf16": bf16, "int8": int8}
            cells: dict[str, list[str]] = {kv: [] for kv in runtimes}
            for length in lengths:
                for kv, cell in _context(runtimes, length, memory).items():
                    cells[kv].append(cell)
            for kv, row in cells.items():
                print(f"| {weights}, {kv} | {' | '.join(row)} |", flush=True)


def _context(runtimes: dict[str, Runtime], length: int, memory: Bytes) -> dict[str, str]:
    """By cache: milliseconds, and as a multiple of its bytes over the bandwidth around it."""
    states = {kv: filled(runtime, length) for kv, runtime in runtimes.items()}
    found: dict[str, list[tuple[float, float]]] = {kv: [] for kv in runtimes}
    for _ in range(ROUNDS):
        for kv, runtime in runtimes.items():
            rate, limit = decode_beside_probe(runtime, states[kv], length, memory)
            nbytes = decode_bytes(runtime, length + STEPS // 2)
            found[kv].append((1e3 / rate, limit / rate / nbytes))
    return {
        kv: f"{median(ms for ms, _ in pairs):.1f} ({median(x for _, x in pairs):.2f})"
        for kv, pairs in found.items()
    }


def sizes(folder: Path) -> None:
    print(header("model", (64, 1024)))
    for shape in SHAPES:
        with loaded(folder, shape, "int8") as runtime:
            print(line(runtime, f"{shape} int8", (64, 1024)), flush=True)


def cores(folder: Path) -> None:
    print(header("cores", (64, 1024)))
    for threads in (1, 2):
        with loaded(folder, "1.7B", "int8", threads=threads) as runtime:
            print(line(runtime, str(threads), (64, 1024)), flush=True)


def chiplets(folder: Path) -> None:
    print(header("chiplets", (64, 1024)))
    for count in (1, 2, 4, 8):
        with loaded(folder, "1.7B", "int8", count) as runtime:
            print(line(runtime, str(count), (64, 1024)), flush=True)


def batch(folder: Path) -> None:
    """Milliseconds of a step for several sequences at context 64, as a ratio to one."""
    counts = BATCHES
    print("| weights | " + " | ".join(f"batch {n}" for n in counts) + " |\n" + "|---" * 6 + "|")
    for weights in ("bf16", "int8", "int4"):
        with loaded(folder, "1.7B", weights) as runtime:
            times: dict[int, list[float]] = {n: [] for n in counts}
            for _ in range(ROUNDS):
                for n in counts:
                    times[n].append(batch_step(runtime, n))
            ratios = [
                f"{1e3 * median(times[n]):.1f} ms ({median(times[n]) / median(times[1]):.2f}x)"
                for n in counts
            ]
            print(f"| {weights} | {' | '.join(ratios)} |", flush=True)


def batch_step(runtime: Runtime, n: int) -> float:
    states = [runtime.new_state() for _ in range(n)]
    ids = np.arange(64, dtype=np.int32)
    for state in states:
        runtime.forward(state, ids, want_logits=False)
    runtime.forward_batch(states, ids[:n])
    begin = perf_counter()
    for _ in range(4):
        runtime.forward_batch(states, ids[:n])
    return (perf_counter() - begin) / 4


TABLES: dict[str, Callable[[Path], None]] = {
    "formats": formats,
    "contexts": contexts,
    "sizes": sizes,
    "cores": cores,
    "chiplets": chiplets,
    "batch": batch,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name not in TABLES:
            sys.exit(f"no table '{name}'; tables: {', '.join(TABLES)}")
    with tempfile.TemporaryDirectory() as temporary:
        for name in sys.argv[1:] or TABLES:
            print(f"\n{name}", flush=True)
            TABLES[name](Path(temporary))
