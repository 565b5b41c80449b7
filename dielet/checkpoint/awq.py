"""AWQ's linears ("gemm"): words of eight outputs, which are not in their order.

qweight [K, N/8], qzeros [groups, N/8], scales [groups, N].  From the lowest four bits up, a word
has the outputs 0, 2, 4, 6, 1, 3, 5, 7 of its eight.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dielet.checkpoint.grouped import (
    U8,
    WORDS,
    Files,
    Grouped,
    group_count,
    in_order,
    packed_weights,
    part,
)
from dielet.checkpoint.quantization import Quantization
from dielet.checkpoint.safetensors import READABLE_DTYPES
from dielet.checkpoint.source import FileTensor

_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
PARTS = ("qweight", "qzeros", "scales")


class Awq(Grouped):
    @property
    def kind(self) -> str:
        return "awq"

    def _codes(self, lo: int, hi: int) -> U8:
        return _outputs(self.qweight, lo, hi)

    def _zeros(self, lo: int, hi: int) -> U8:
        return _outputs(self.qzeros, lo, hi)


def _outputs(tensor: FileTensor, lo: int, hi: int) -> U8:
    """Outputs lo..hi-1 of all rows of a tensor of words: [hi - lo, rows]."""
    first = lo // 8
    words = tensor.columns(first, -(-hi // 8)).view("<u4")
    by_word = np.ascontiguousarray(words.T)
    codes = np.empty((len(by_word), 8, tensor.N), np.uint8)
    for place, output in enumerate(_OUTPUTS):
        np.bitwise_and(by_word >> np.uint32(4 * place), 15, out=codes[:, output], casting="unsafe")
    return codes.reshape(8 * len(by_word), tensor.N)[lo - 8 * first : hi - 8 * first]


def awq_linears(files: Files, how: Quantization) -> Iterator[Awq]:
    """The quantised linears among the tensors of `files`.  Raises DamagedFile, Unsupported."""
    for stem, words in packed_weights(files):
        K, N = words.shape[0], 8 * words.shape[1]
        groups = group_count(K, how.group)
        yield Awq(
            f"{stem}.weight",
            (N, K),
            words,
            part(files, f"{stem}.qzeros", (groups, N // 8), WORDS),
            part(files, f"{stem}.scales", (groups, N), READABLE_DTYPES),
            in_order(K, how.group),
        )
