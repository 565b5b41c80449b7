"""The workers: the calling thread is worker 0, the others are threads that live with the model.

Helpers spin on a doorbell for a while after each program, since the next one usually follows at
once, and then sleep on a semaphore of the system, so that an idle model costs nothing.
"""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np

from dielet.codegen.library import Library
from dielet.codegen.worker import (
    BELL_SEMAPHORES,
    BELL_SLEEP,
    BELL_WAKE,
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
        self.workers = workers
        self._library = library  # helpers run its code for as long as they live
        self._closed = False
        self._process = os.getpid()
        self._bell = _bell(workers)
        self._progress = np.zeros(workers * LINE_WORDS, np.int64)
        self._context = np.zeros(CTX_WORDS, np.int64)
        self._context[CTX_PROGRESS] = address(self._progress)
        self._context[CTX_YIELD] = self._bell[BELL_YIELD]
        self._threads = [
            threading.Thread(
                target=_help,
                args=(library, self._bell, worker),
                name=f"dielet-{worker}",
                daemon=True,
            )
            for worker in range(1, workers)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, tables: Tables, bases: I64, binding: I64) -> None:
        """Execute a program to its end on all workers."""
        if self._closed:
            raise UsageError("this model is closed; load it again")
        if os.getpid() != self._process:  # threads do not survive a fork: nobody would answer
            raise UsageError(
                "this model was loaded before the process forked; load it again in the child"
            )
        context = self._context
        context[CTX_PIECES] = address(tables.piece_pointers)
        context[CTX_COUNTS] = address(tables.piece_counts)
        context[CTX_STAMPS] = address(tables.stamp_pointers)
        context[CTX_BASES] = address(bases)
        context[CTX_BINDING] = address(binding)
        self._progress.fill(0)
        self._library.execute(address(self._bell), address(context), self.workers)

    def close(self) -> None:
        """Stop and join the helper threads; a second time does nothing."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        self._library.stop(address(self._bell))
        for thread in self._threads:
            thread.join()


def _help(library: Library, bell: I64, worker: int) -> None:
    """A helper's thread: inside native code until the team is closed."""
    library.serve(address(bell), worker, SPINS)


def _bell(workers: int) -> I64:
    """The doorbell that helpers wait on, with the system's functions to yield, sleep and wake."""
    bell = np.zeros(BELL_WORDS, np.int64)
    bell[BELL_YIELD] = _libc("sched_yield")
    functions = [_libc(name) for name in ("sem_init", "sem_wait", "sem_post")]
    if all(functions):
        initialise = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
        for worker in range(workers):
            semaphore = address(bell) + 8 * (BELL_SEMAPHORES + worker * LINE_WORDS)
            if initialise(functions[0])(semaphore, 0, 0):
                return bell  # no semaphores here (macOS has none in memory): helpers never sleep
        bell[BELL_SLEEP], bell[BELL_WAKE] = functions[1:]
    return bell


def _libc(name: str) -> int:
    """The address of a function of the C library, or 0 where there is none."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0
