"""This machine's processor in LLVM's words, remembered by what the system says of it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

import llvmlite
import msgspec

from dielet.codegen import cache

CPUINFO = Path("/proc/cpuinfo")
CHANGING = ("processor", "cpu mhz", "apicid", "initial apicid", "core id", "bogomips")


class Processor(msgspec.Struct, frozen=True):
    triple: str
    cpu: str
    features: str  # "+name,-name,..."

    def has(self, needs: Iterable[str]) -> bool:
        return {f"+{need}" for need in needs} <= set(self.features.split(","))


def describe(cache_dir: Path | None) -> Processor:
    """From the cache where this very processor has been described before; else LLVM is asked."""
    identity = _identity()
    if cache_dir is None or identity is None:
        return _ask()
    known = cache.read(cache_dir, identity)
    if known is not None:
        return msgspec.msgpack.decode(known, type=Processor)
    processor = _ask()
    cache.write(cache_dir, identity, msgspec.msgpack.encode(processor))
    return processor


def _ask() -> Processor:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features().flatten()
    return Processor(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def _identity() -> str | None:
    """A hash of all that the system tells of the first core that stays the same; None: unknown."""
    try:
        first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    except OSError:
        return None
    lines = [x for x in first.splitlines() if x.split(":")[0].strip().lower() not in CHANGING]
    parts = [cache.generator_hash(), llvmlite.__version__, platform.machine(), *lines]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
