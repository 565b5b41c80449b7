"""From a tensor of a checkpoint to the packed bytes of a linear."""

import numpy as np

from dielet.checkpoint.source import Source
from dielet.formats.packed import PANEL, Packed, WeightFormat, pack
from dielet.formats.parallel import for_panels
from dielet.formats.quantize import quantize_rows


def pack_rows(
    source: Source,
    fmt: WeightFormat,
    lo: int = 0,
    hi: int | None = None,
    *,
    threads: int | None = None,
    out: Packed | None = None,
) -> Packed:
    """Rows lo..hi-1 of `source` (all by default) in `fmt`: [panels, groups] of records.

    Taken over where the file's own format allows it, otherwise quantised; read in pieces,
    never as a whole.  `threads` None means every core; the result does not depend on it.  Raises
    NumericError for weights that are NaN, infinite or beyond the format, UsageError for a K that
    the format cannot hold.
    """
    hi = source.N if hi is None else hi
    N, K = hi - lo, source.K
    if fmt not in source.exact_formats:
        return quantize_rows(
            fmt,
            lambda a, b: source.rows(lo + a, lo + b),
            N,
            K,
            name=source.name,
            threads=threads,
            out=out,
        )
    fmt.check_columns(K, source.name)
    packed = np.empty(fmt.packed_shape(N, K), fmt.record(K)) if out is None else out

    def take_over(a: int, b: int) -> None:
        pack(fmt, *source.blocks(lo + a, lo + b, fmt), out=packed[a // PANEL : -(-b // PANEL)])

    for_panels(N, K, take_over, threads)
    return packed
