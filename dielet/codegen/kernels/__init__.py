"""The kernel families, one idea a file; `generate` turns a key into a function of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dielet.codegen.function import Module
from dielet.codegen.kernel import Kernel, KernelKey
from dielet.codegen.kernels import (
    attention,
    attention_int8,
    experts,
    linear,
    rotary,
    rowwise,
    tokens,
    transfer,
)
from dielet.codegen.targets.base import Target
from dielet.errors import InternalError

# family: (its static shape, the function that writes it)
FAMILIES: dict[str, tuple[type[Any], Callable[[Kernel, Target, Any], None]]] = {
    "rmsnorm": (rowwise.RmsNorm, rowwise.rmsnorm),
    "quantize": (rowwise.Quantize, rowwise.quantize),
    "convert": (rowwise.Convert, rowwise.convert),
    "silu_mul": (rowwise.SiluMul, rowwise.silu_mul),
    "linear": (linear.Linear, linear.linear),
    "rotary": (rotary.Rotary, rotary.rotary),
    "kv_append": (rotary.KvAppend, rotary.kv_append),
    "attention": (attention.Attention, attention_int8.attention),
    "route": (experts.Route, experts.route),
    "experts_gated": (experts.ExpertsGated, experts.experts_gated),
    "experts_sum": (experts.ExpertsSum, experts.experts_sum),
    "embed": (tokens.Embed, tokens.embed),
    "select": (tokens.Select, tokens.select),
    "copy": (transfer.Copy, transfer.copy),
    "reduce": (transfer.Reduce, transfer.reduce),
    "nothing": (transfer.Nothing, transfer.nothing),
}


def generate(module: Module, target: Target, key: KernelKey) -> Kernel:
    """Write the kernel of `key` into `module` under `key.symbol`."""
    if key.family not in FAMILIES:
        raise InternalError(f"no kernel family {key.family!r}; there are {', '.join(FAMILIES)}")
    shape_type, write = FAMILIES[key.family]
    try:
        shape = shape_type(**dict(key.static))
    except TypeError as problem:
        names = ", ".join(f.name for f in dataclasses.fields(shape_type))
        raise InternalError(f"kernel {key} does not fit its family ({names})") from problem
    kernel = Kernel(module, key.symbol)
    write(kernel, target, shape)
    return kernel
