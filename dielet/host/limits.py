"""What this machine can do at most, measured by generated probes."""

from __future__ import annotations

from functools import cache
from statistics import median

from dielet import paths
from dielet.codegen import host_target
from dielet.codegen.probes import Probes
from dielet.host.memory import address, anonymous

READ_BYTES = 256 << 20  # several times the last-level cache
ROUNDS = 5


@cache
def probes() -> Probes:
    kept = paths.cache_dir("native")
    return Probes(host_target(kept), kept)


@cache
def read_bandwidth(threads: int) -> float:
    """GB/s (1e9) that `threads` threads read from memory: the median of a few rounds.

    The memory is in large pages where the system gives them, and is given back afterwards.
    """
    memory = anonymous(READ_BYTES, huge=True)
    memory[::4096] = 1
    rates = [probes().read(address(memory), len(memory), threads) for _ in range(ROUNDS)]
    return median(rates) / 1e9
