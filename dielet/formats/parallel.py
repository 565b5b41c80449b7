"""Share panels out over threads; numpy lets go of the interpreter lock inside its long loops."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dielet.formats.packed import PANEL

# Weights in one piece of work: large enough that handing over the lock costs nothing, small
# enough that its float32 rows (2 MB) stay in the last-level cache.
PIECE = 1 << 19


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def for_panels(N: int, K: int, convert: Callable[[int, int], None], threads: int | None) -> None:
    """Call convert(lo, hi) for runs of whole panels that cover rows 0..N, in no promised order.

    `threads` None means every core.  The first exception ends the work and is raised here.
    """
    rows = max(1, PIECE // (PANEL * K)) * PANEL
    runs = [(lo, min(N, lo + rows)) for lo in range(0, N, rows)]
    workers = min(threads or available_cores(), len(runs))
    if workers <= 1:
        for lo, hi in runs:
            convert(lo, hi)
        return
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(convert, lo, hi) for lo, hi in runs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
