"""The instruction sets that code can be generated for, and the one of this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dielet.codegen.processor import describe
from dielet.codegen.targets.avx2 import AVX2
from dielet.codegen.targets.avx512 import AVX512
from dielet.codegen.targets.base import Target
from dielet.codegen.targets.neon import NEON, NEON_BF16
from dielet.codegen.targets.plain import PLAIN

# The best first: a machine takes the first whose needs it meets.
TARGETS: dict[str, Target] = {t.name: t for t in (AVX512, AVX2, NEON_BF16, NEON, PLAIN)}


def host_target(cache_dir: Path | None = None) -> Target:
    """The best target that this machine runs, tuned for its processor.

    With `cache_dir`, what LLVM says of the processor is asked once and kept there.
    """
    processor = describe(cache_dir)
    best = next(t for t in TARGETS.values() if processor.has(t.needs))
    return replace(
        best,
        triple=processor.triple,
        cpu=processor.cpu,
        features=processor.features + best.tuning,
    )


__all__ = ["TARGETS", "Target", "host_target"]
