"""Any 64-bit processor that LLVM knows: generic IR only, and no calls into a run-time library."""

from __future__ import annotations

from dielet.codegen.targets.base import Target

PLAIN = Target(
    name="plain",
    triple="x86_64-unknown-linux-gnu",
    cpu="",
    features="",
    fused=False,
    lanes=4,
    registers=16,
    int_rows=2,
    int_cols=2,
    bf16_rows=2,
    bf16_cols=2,
)
