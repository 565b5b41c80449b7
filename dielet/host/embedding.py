"""Look tokens up in the packed embedding table, with the generated kernel."""

from __future__ import annotations

import ctypes

import numpy as np

from dielet.codegen import KernelKey
from dielet.formats.packed import WeightFormat
from dielet.host.memory import Bytes, address
from dielet.host.tables import I64
from dielet.program.commands.linear import weight_attrs
from dielet.program.types import Attr

_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)


def embed_key(fmt: WeightFormat, hidden: int, scale: float = 1.0) -> KernelKey:
    """`scale`: what every number of the table is multiplied by."""
    attrs: dict[str, Attr] = {"K": hidden, **weight_attrs(fmt)}
    if scale != 1.0:
        attrs["scale"] = scale
    return KernelKey("embed", tuple(sorted(attrs.items())))


class Embedding:
    """rows(ids) -> f32 [len(ids), hidden], written where it is told."""

    def __init__(self, kernel: int, table: Bytes, hidden: int) -> None:
        self._call = _KERNEL(kernel)
        self._table = table
        self._operands: I64 = np.array([address(table), 0, 0], np.int64)
        self._params: I64 = np.array([hidden], np.int64)
        self._binding: I64 = np.zeros(2, np.int64)

    def look_up(self, ids: np.ndarray, out: np.ndarray) -> None:
        """ids int32 [n], all within the vocabulary -> out f32 [>= n, hidden]."""
        self._operands[1:] = address(ids), address(out)
        self._binding[1] = len(ids)
        self._call(address(self._operands), address(self._params), address(self._binding), 0, 1, 1)
