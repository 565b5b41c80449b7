"""What enters the linears of a model while it reads: sums of squares, and a sample of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Inputs:
    """Sums over all rows that a linear has read, and every so-manieth row itself."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._groups: dict[str, _Group] = {}

    def see(self, parameters: tuple[str, ...], x: F32) -> None:
        """Take in rows [rows, K] that all of `parameters` are multiplied by."""
        group = self._groups.get(parameters[0])
        if group is None:
            group = _Group(x.shape[1])
            self._groups |= dict.fromkeys(parameters, group)
        group.add(x, self._every)

    def importance(self) -> dict[str, F32]:
        """The mean square of every input, f32 [K], by parameter."""
        return {name: group.mean_square() for name, group in self._groups.items()}

    def sample(self, parameter: str) -> F32:
        """Some of the rows, [rows, K]: the same ones of every model that read the same text."""
        return np.concatenate(self._groups[parameter].rows)


class _Group:
    def __init__(self, K: int) -> None:
        self._squares = np.zeros(K, np.float64)
        self._count = 0
        self.rows: list[F32] = []

    def add(self, x: F32, every: int) -> None:
        self.rows.append(x[-self._count % every :: every].copy())
        self._count += len(x)
        self._squares += np.square(x, dtype=np.float64).sum(axis=0)

    def mean_square(self) -> F32:
        return (self._squares / self._count).astype(np.float32)
