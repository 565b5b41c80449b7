"""The workers: the calling thread is worker 0, the others are threads that live with the model.

Helpers spin on a doorbell for a while after each program, since the next one usually follows at
once, and then block on a lock, so that an idle model costs nothing.
"""

from __future__ import annotations

import ctypes
import threading

import numpy as np

from dielet.codegen.library import Library
from dielet.codegen.worker import (
    BELL_WORDS,
    BELL_YIELD,
    CTX_BASES,
    CTX_BINDING,
    CTX_COUNTS,
    CTX_PIECES,
    CTX_PROGRESS,
    CTX_STAMPS,
    CTX_WORDS,
    CTX_YIELD,
    LINE_WORDS,
    MAX_WORKERS,
)
from dielet.errors import UsageError
from dielet.host.memory import address
from dielet.host.tables import I64, Tables

SPINS = 4000  # pauses before an idle helper blocks: about a quarter of a millisecond


class Team:
    """Runs programs on `workers` threads.  Not reentrant: the caller queues up executions."""

    def __init__(self, library: Library, workers: int) -> None:
        if not 1 <= workers <= MAX_WORKERS:
            raise UsageError(f"{workers} threads: must be from 1 to {MAX_WORKERS}")
        self.workers = workers
        self._run, self._ring, self._join = library.run, library.ring, library.join
        self._serve, self._stop = library.serve, library.stop
        self._yield = _sched_yield_address()
        self._bell = np.zeros(BELL_WORDS, np.int64)
        self._bell[BELL_YIELD] = self._yield
        self._progress = np.zeros(workers * LINE_WORDS, np.int64)
        self._context = np.zeros(CTX_WORDS, np.int64)
        self._context[CTX_PROGRESS] = address(self._progress)
        self._context[CTX_YIELD] = self._yield
        self._locks = [threading.Semaphore(0) for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._help, args=(w,), name=f"dielet-{w}", daemon=True)
            for w in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, tables: Tables, bases: I64, binding: I64) -> None:
        """Execute a program to its end on all workers."""
        context = self._context
        context[CTX_PIECES] = address(tables.piece_pointers)
        context[CTX_COUNTS] = address(tables.piece_counts)
        context[CTX_STAMPS] = address(tables.stamp_pointers)
        context[CTX_BASES] = address(bases)
        context[CTX_BINDING] = address(binding)
        self._progress.fill(0)
        if self.workers > 1:
            self._wake(self._ring(address(self._bell), address(context)))
        self._run(address(context), 0)
        if self.workers > 1:
            self._join(address(self._bell), self.workers, self._yield)

    def close(self) -> None:
        """Stop and join the helper threads."""
        self._wake(self._stop(address(self._bell)))
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _wake(self, parked: int) -> None:
        for worker in range(1, self.workers):
            if parked >> worker & 1:
                self._locks[worker].release()

    def _help(self, worker: int) -> None:
        bell = address(self._bell)
        while not self._serve(bell, worker, SPINS):
            self._locks[worker].acquire()


def _sched_yield_address() -> int:
    """Where libc's sched_yield is, or 0 on a system without one: waits then only spin."""
    try:
        function = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
