"""GPTQ's linears: words of eight inputs, zero points in words of eight outputs.

qweight [K/8, N], qzeros [groups, N/8], scales [groups, N], and g_idx [K], the group of each input.
The first of eight is in the lowest four bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.grouped import (
    U8,
    U32,
    WORDS,
    Files,
    Grouped,
    group_count,
    in_order,
    packed_weights,
    part,
)
from dielet.checkpoint.names import shown
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.safetensors import READABLE_DTYPES
from dielet.errors import DamagedFile

_ONES = np.uint32(0x1111_1111)
PARTS = ("qweight", "qzeros", "scales", "g_idx")


@dataclass(frozen=True, eq=False)
class Gptq(Grouped):
    """less_one: whether words of zero points are stored as that much less, borrowing across."""

    less_one: bool

    @property
    def kind(self) -> str:
        return "gptq"

    def _codes(self, lo: int, hi: int) -> U8:
        words = self.qweight.columns(lo, hi).view("<u4")
        return _nibbles(np.ascontiguousarray(words.T))

    def _zeros(self, lo: int, hi: int) -> U8:
        first = lo // 8
        words = self.qzeros.columns(first, -(-hi // 8)).view("<u4")
        if self.less_one:
            words = words + _ONES
        return np.ascontiguousarray(_nibbles(words)[:, lo - 8 * first : hi - 8 * first].T)


def _nibbles(words: U32) -> U8:
    """[n, words] -> [n, 8 * words], the lowest four bits first."""
    pairs = words.astype("<u4", copy=False).view(np.uint8)
    codes = np.empty((*pairs.shape, 2), np.uint8)
    np.bitwise_and(pairs, 15, out=codes[..., 0])
    np.right_shift(pairs, 4, out=codes[..., 1])
    return codes.reshape(len(words), 8 * words.shape[1])


def gptq_linears(files: Files, how: Quantization) -> Iterator[Gptq]:
    """The quantised linears among the tensors of `files`.  Raises DamagedFile, Unsupported."""
    for stem, words in packed_weights(files):
        K, N = 8 * words.shape[0], words.shape[1]
        if N % 8:
            raise DamagedFile(
                f"{words.where}: {shown(words.name)} is {list(words.shape)}; its second size must "
                "be a multiple of 8"
            )
        groups = group_count(K, how.group)
        yield Gptq(
            f"{stem}.weight",
            (N, K),
            words,
            part(files, f"{stem}.qzeros", (groups, N // 8), WORDS),
            part(files, f"{stem}.scales", (groups, N), READABLE_DTYPES),
            _group_of(files, stem, K, groups, how),
            how.less_one,
        )


def _group_of(files: Files, stem: str, K: int, groups: int, how: Quantization) -> NDArray[np.intp]:
    usual = in_order(K, how.group)
    name = f"{stem}.g_idx"
    if name not in files:
        if how.ordered:
            return usual
        raise DamagedFile(
            f"{files[f'{stem}.qweight'].path}: {shown(stem)} has no g_idx, which desc_act in "
            "config.json asks for"
        )
    index = part(files, name, (K,), WORDS)
    found = index.columns(0, K).view("<i4")[0].astype(np.intp)
    if np.array_equal(found, usual):
        return usual
    where = f"{index.where}: {shown(name)}"
    if how.ordered:
        raise DamagedFile(
            f"{where} is not one group after another, yet desc_act in config.json is not true; set "
            "it as the weights were made"
        )
    if found.min() < 0 or found.max() >= groups:
        raise DamagedFile(f"{where} is from {found.min()} to {found.max()} of {groups} groups")
    return found
