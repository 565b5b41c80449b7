"""The instruction sets that code can be generated for, and the one of this machine."""

from __future__ import annotations

from dataclasses import replace

import llvmlite.binding as llvm

from dielet.codegen.targets.avx2 import AVX2
from dielet.codegen.targets.avx512 import AVX512
from dielet.codegen.targets.base import Target
from dielet.codegen.targets.neon import NEON, NEON_BF16
from dielet.codegen.targets.plain import PLAIN

# The best first: a machine takes the first whose needs it meets.
TARGETS: dict[str, Target] = {t.name: t for t in (AVX512, AVX2, NEON_BF16, NEON, PLAIN)}


def host_target() -> Target:
    """The best target that this machine runs, tuned for its processor."""
    features = llvm.get_host_cpu_features()
    have = {name for name, on in features.items() if on}
    best = next(t for t in TARGETS.values() if set(t.needs) <= have)
    return replace(
        best,
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=features.flatten() + best.tuning,
    )


__all__ = ["TARGETS", "Target", "host_target"]
