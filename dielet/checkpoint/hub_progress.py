"""A bar on the terminal for a download that takes long enough to wonder about."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dielet.checkpoint.hub_settings import is_true

_LONG = 10_000_000  # bytes


@contextmanager
def transfer(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """While inside, the given function is told bytes as they come; `total` is how many will.

    Nothing is shown off a terminal, nor with HF_HUB_DISABLE_PROGRESS_BARS.
    """
    off = is_true("HF_HUB_DISABLE_PROGRESS_BARS")
    if off or total < _LONG or sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)
