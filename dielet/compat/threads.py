"""Torch's threads, kept from the cores that programs run on.

After each operation they wait for the next one busily, and programs need every core for
themselves: choosing tokens with two threads made them five times as slow on two cores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0
_usual = 1


@contextmanager
def alone() -> Iterator[None]:
    """Let torch work on the calling thread only, until the last such block has ended."""
    global _inside, _usual
    with _lock:
        if not _inside:
            _usual = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(1 if _inside else _usual)
