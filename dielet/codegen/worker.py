"""The native loop that walks one worker's list of pieces, and the doorbell that starts it.

Memory layouts (all i64, native byte order) are constants here; the host fills them.

Context, one per program execution (`CTX_*`): tables of addresses and the shared progress counters.
Piece (`PIECE_*`, 16 words): one kernel call with its waits. Worker w finishes piece i by storing
i + 1 to progress[w] with release order; a wait (worker, value) spins until progress[worker] has
reached value, with acquire order. Progress is zeroed by the caller before a run.

Doorbell (`BELL_*`), one per set of helper threads, every word that different threads write on its
own cache line:

    serve(bell, worker, spins)   a helper's life: runs every context that is rung, until told to
                                 stop. After `spins` idle turns it sleeps on its semaphore.
    execute(bell, ctx, workers)  rings, is worker 0 itself, returns when all have finished. One
                                 call, so no signal handler comes between the ring and the end.
    stop(bell)                   tells the helpers to return.

A helper that goes to sleep exchanges its flag to 1 and then looks at the doorbell once more;
whoever exchanges the flag back to 0 and finds 1 owns the wake-up, so every sleep is answered by
exactly one post. Semaphores are the system's own (`sem_wait`, `sem_post`); without them helpers
never sleep.
"""

from __future__ import annotations

from dielet.codegen.function import Function, Module, Pointer
from dielet.codegen.targets.base import Target
from dielet.codegen.values import I32, I64, PTR, VOID, Value

MAX_WORKERS = 64
MAX_OPERANDS = 12
LINE_WORDS = 8  # i64 words of a 64-byte line: the stride of progress counters

# Context: word index of each address.
CTX_PIECES = 0  # -> ptr[workers]: the pieces of each worker
CTX_COUNTS = 1  # -> i64[workers]: how many
CTX_BASES = 2  # -> i64[spaces]: base address of each address space
CTX_BINDING = 3  # -> i64[2]: past, valid
CTX_PROGRESS = 4  # -> i64[workers * LINE_WORDS]
CTX_STAMPS = 5  # -> ptr[workers]: i64[pieces][2] start and end ticks of each piece
CTX_YIELD = 6  # address of int sched_yield(void), or 0
CTX_WORDS = 8

# Piece: word index of each field.
PIECE_WORDS = 16
PIECE_KERNEL = 0
PIECE_OPERANDS = 1  # -> i64[n][2]: address space, offset
PIECE_N_OPERANDS = 2
PIECE_PARAMS = 3
PIECE_LO, PIECE_HI, PIECE_DEN = 4, 5, 6
PIECE_N_WAITS = 7
PIECE_WAITS = 8  # -> i64[n][2]: worker, progress value

# Doorbell: word index.
BELL_COUNT = 0  # contexts rung so far
BELL_CTX = 1  # the last one
BELL_STOP = 2
BELL_YIELD = 3  # address of sched_yield for idle helpers, or 0
BELL_SLEEP = 4  # address of int sem_wait(sem_t *), or 0
BELL_WAKE = 5  # address of int sem_post(sem_t *)
BELL_PARKED = LINE_WORDS  # i64[MAX_WORKERS * LINE_WORDS]
BELL_DONE = BELL_PARKED + MAX_WORKERS * LINE_WORDS  # likewise: contexts finished
BELL_SEMAPHORES = BELL_DONE + MAX_WORKERS * LINE_WORDS  # one sem_t, at most a line, each
BELL_WORDS = BELL_SEMAPHORES + MAX_WORKERS * LINE_WORDS

PATIENCE = 50  # spins, about 2 us, before a waiting worker offers its core to others

SYMBOLS = tuple(f"dielet_{name}" for name in ("run", "serve", "execute", "stop", "clock"))


def worker_module(t: Target) -> Module:
    module = Module(t.fused)
    run(module, t)
    serve(module, t)
    execute(module, t)
    stop(module)
    clock = module.function("dielet_clock", [], I64)
    clock.ret(ticks(clock, t))
    return module


def ticks(k: Function, t: Target) -> Value:
    """The steady counter that stamps are taken from: rdtsc, or CNTVCT_EL0 on ARM.

    Without the fence a stamp may be read before the wait in front of it is over.
    """
    t.fence(k)
    return k.call("llvm.readcyclecounter", I64)


def rest(k: Function, t: Target, spins: Value, yield_address: Value) -> None:
    """One turn of a waiting loop: pause, and after PATIENCE turns offer the core to others."""
    t.pause(k)
    with k.when((spins >= PATIENCE) & yield_address.ne(0)):
        k.call_pointer(k.pointer(yield_address, I64).address, I32)


def run(module: Module, t: Target) -> None:
    """void run(ptr ctx, i64 worker)"""
    k = module.function("dielet_run", [PTR, I64])
    ctx, worker = Pointer(k.args[0], I64), k.args[1]

    def table(word: int) -> Pointer:
        return k.pointer(ctx[word], I64)

    pieces = k.pointer(table(CTX_PIECES)[worker], I64)
    stamps = k.pointer(table(CTX_STAMPS)[worker], I64)
    bases, progress, binding = table(CTX_BASES), table(CTX_PROGRESS), table(CTX_BINDING)
    yield_address = ctx[CTX_YIELD]
    operands = k.scratch(PTR, MAX_OPERANDS)
    with k.loop(table(CTX_COUNTS)[worker]) as i:
        piece = pieces.at(i * PIECE_WORDS)
        waits = k.pointer(piece[PIECE_WAITS], I64)
        with k.loop(piece[PIECE_N_WAITS]) as n:
            other, value = waits[n * 2], waits[n * 2 + 1]
            spins = k.var(k.i64(0))
            with k.repeat() as again:
                again.until(progress.acquire(other * LINE_WORDS) >= value)
                spins.value = spins.value + 1
                rest(k, t, spins.value, yield_address)
        stamps[i * 2] = ticks(k, t)
        pairs = k.pointer(piece[PIECE_OPERANDS], I64)
        with k.loop(piece[PIECE_N_OPERANDS]) as n:
            address = bases[pairs[n * 2]] + pairs[n * 2 + 1]
            operands[n] = k.pointer(address, I64).address
        kernel = k.pointer(piece[PIECE_KERNEL], I64).address
        params = k.pointer(piece[PIECE_PARAMS], I64).address
        part = [piece[word] for word in (PIECE_LO, PIECE_HI, PIECE_DEN)]
        k.call_pointer(kernel, k.result, operands.address, params, binding.address, *part)
        stamps[i * 2 + 1] = ticks(k, t)
        progress.release(worker * LINE_WORDS, i + 1)


def serve(module: Module, t: Target) -> None:
    """void serve(ptr bell, i64 worker, i64 spins)"""
    k = module.function("dielet_serve", [PTR, I64, I64])
    bell, worker, patience = Pointer(k.args[0], I64), k.args[1], k.args[2]
    parked = bell.at(worker * LINE_WORDS + BELL_PARKED)
    done = bell.at(worker * LINE_WORDS + BELL_DONE)
    seen = k.var(done[0])
    spins = k.var(k.i64(0))
    with k.repeat() as again:
        count = bell.acquire(BELL_COUNT)
        with k.when(count.ne(seen.value)):
            k.call("dielet_run", VOID, k.pointer(bell[BELL_CTX], I64).address, worker)
            seen.value = count
            spins.value = k.i64(0)
            done.release(0, count)
        again.until(bell.acquire(BELL_STOP).ne(0))
        rest(k, t, spins.value, bell[BELL_YIELD])
        spins.value = spins.value + 1
        with k.when((spins.value > patience) & bell[BELL_SLEEP].ne(0)):
            spins.value = k.i64(0)
            parked.exchange(0, k.i64(1))
            # A doorbell or stop may have come before the flag: then take the flag back. If it is
            # gone already, a wake-up is under way and must be received: sleep all the same.
            late = bell.ordered(BELL_COUNT).ne(seen.value) | bell.ordered(BELL_STOP).ne(0)
            mine = k.var(k.i64(0))
            with k.when(late):
                mine.value = parked.exchange(0, k.i64(0))
            with k.when(mine.value.eq(0)):
                sleep = k.pointer(bell[BELL_SLEEP], I64).address
                k.call_pointer(sleep, I32, semaphore(bell, worker))


def semaphore(bell: Pointer, worker: Value) -> Value:
    return bell.at(worker * LINE_WORDS + BELL_SEMAPHORES).address


def wake(k: Function, bell: Pointer) -> None:
    """Post the semaphore of every helper that sleeps or is about to."""
    with k.loop(MAX_WORKERS) as w:
        flag = bell.at(w * LINE_WORDS + BELL_PARKED)
        with k.when(flag.ordered().ne(0)), k.when(flag.exchange(0, k.i64(0)).ne(0)):
            post = k.pointer(bell[BELL_WAKE], I64).address
            k.call_pointer(post, I32, semaphore(bell, w))


def execute(module: Module, t: Target) -> None:
    """void execute(ptr bell, ptr ctx, i64 workers)"""
    k = module.function("dielet_execute", [PTR, I64, I64])
    bell, ctx, workers = Pointer(k.args[0], I64), k.args[1], k.args[2]
    with k.when(workers > 1):
        bell[BELL_CTX] = ctx
        bell.fetch_add(BELL_COUNT, k.i64(1))
        wake(k, bell)
    k.call("dielet_run", VOID, k.pointer(ctx, I64).address, k.i64(0))
    count = bell.acquire(BELL_COUNT)
    with k.loop(1, workers) as w:
        spins = k.var(k.i64(0))
        with k.repeat() as again:
            again.until(bell.acquire(w * LINE_WORDS + BELL_DONE) >= count)
            spins.value = spins.value + 1
            rest(k, t, spins.value, bell[BELL_YIELD])


def stop(module: Module) -> None:
    """void stop(ptr bell)"""
    k = module.function("dielet_stop", [PTR])
    bell = Pointer(k.args[0], I64)
    bell.exchange(BELL_STOP, k.i64(1))
    wake(k, bell)
