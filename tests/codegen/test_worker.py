"""The worker loop: pieces, waits, stamps, and the doorbell protocol with parked helpers."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from dielet.codegen import KernelKey, compile_kernels, worker

from .harness import HOST, _cache_dir

LIBC_YIELD = ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
CONVERT = KernelKey.of("convert")
LIBRARY = compile_kernels([CONVERT], HOST, _cache_dir())


@dataclass
class Context:
    """Pieces that copy 32 numbers along a chain of buffers, dealt over workers."""

    workers: int
    length: int
    keep: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = np.zeros((self.length + 1, 32), np.float32)
        self.bf16 = np.zeros((self.length, 32), np.uint16)
        lists: list[list[list[int]]] = [[] for _ in range(self.workers)]
        last = None  # (worker, progress) of the piece before
        kernel = LIBRARY.address(CONVERT)
        for i in range(self.length):
            mine = lists[i % self.workers]
            operands = self.array([[0, i * 128], [1, i * 64]])
            waits = self.array([last] if last else [])
            params = self.array([32, 32, 32, 0, 1])
            piece = [kernel, operands, 2, params, 0, 1, 1, 1 if last else 0, waits]
            mine.append(piece + [0] * (worker.PIECE_WORDS - len(piece)))
            last = (i % self.workers, len(mine))
        self.progress = np.zeros((self.workers, worker.LINE_WORDS), np.int64)
        self.stamps = [np.zeros((len(p), 2), np.int64) for p in lists]
        words = [0] * worker.CTX_WORDS
        words[worker.CTX_PIECES] = self.array([self.array(p) for p in lists])
        words[worker.CTX_COUNTS] = self.array([len(p) for p in lists])
        words[worker.CTX_BASES] = self.array([self.data.ctypes.data, self.bf16.ctypes.data])
        words[worker.CTX_BINDING] = self.array([0, 1])
        words[worker.CTX_PROGRESS] = self.progress.ctypes.data
        words[worker.CTX_STAMPS] = self.array([s.ctypes.data for s in self.stamps])
        words[worker.CTX_YIELD] = LIBC_YIELD
        self.address = self.array(words)

    def array(self, numbers) -> int:
        self.keep.append(np.array(numbers, np.int64))
        return self.keep[-1].ctypes.data

    def check(self) -> None:
        assert self.progress[:, 0].tolist() == [len(s) for s in self.stamps]
        order = np.concatenate(
            [self.stamps[i % self.workers][i // self.workers] for i in range(self.length)]
        )
        assert (np.diff(order) >= 0).all() and order[0] > 0  # a chain: one after the other
        np.testing.assert_array_equal(self.bf16, self.data[:-1].view(np.uint32) >> 16)


def test_one_worker_runs_its_pieces() -> None:
    context = Context(1, 5)
    context.data[:] = np.arange(6)[:, None]
    LIBRARY.run(context.address, 0)
    context.check()


def test_waits_order_pieces_of_different_workers() -> None:
    context = Context(3, 300)
    context.data[:] = np.arange(301)[:, None] % 128
    threads = [threading.Thread(target=LIBRARY.run, args=(context.address, w)) for w in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context.check()


@pytest.mark.parametrize("spins", [0, 50, 100000])
@pytest.mark.parametrize("workers", [2, 4])
def test_doorbell(spins: int, workers: int) -> None:
    """Helpers run every context rung, whether they were spinning or had parked; then they stop."""
    bell = np.zeros(worker.BELL_WORDS, np.int64)
    at = bell.ctypes.data
    libc = ctypes.CDLL(None)
    for w in range(workers):
        semaphore = at + 8 * (worker.BELL_SEMAPHORES + w * worker.LINE_WORDS)
        assert libc.sem_init(ctypes.c_void_p(semaphore), 0, 0) == 0
    bell[worker.BELL_YIELD] = LIBC_YIELD
    bell[worker.BELL_SLEEP] = ctypes.cast(libc.sem_wait, ctypes.c_void_p).value
    bell[worker.BELL_WAKE] = ctypes.cast(libc.sem_post, ctypes.c_void_p).value
    threads = [
        threading.Thread(target=LIBRARY.serve, args=(at, w, spins)) for w in range(1, workers)
    ]
    for thread in threads:
        thread.start()
    try:
        for turn in range(300):
            context = Context(workers, 2 * workers)
            context.data[:] = turn % 128
            LIBRARY.execute(at, context.address, workers)
            context.check()
    finally:
        LIBRARY.stop(at)
        for thread in threads:
            thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_clock_runs_forward() -> None:
    first = LIBRARY.clock()
    assert LIBRARY.clock() > first
