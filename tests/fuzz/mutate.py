"""A byte mutator, and a forked worker that feeds a reader with what it makes.

Input `index` of a run depends on the seed, the index and the samples alone, so a failure is
replayed by its index, or by the bytes that the message has in hexadecimal digits.
"""

from __future__ import annotations

import atexit
import gc
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dielet.errors import DieletError

SEED = 8
LONGEST = 1 << 16  # bytes of an input
SECONDS = 2.0  # of the processor that one input may take
PATIENCE = 60.0  # seconds by the clock: a worker that waits for nothing has hung too
MEMORY = 1 << 30  # bytes that a worker may have beyond what it starts with
MOST_FAILURES = 8
MOST_WORDS = 1500  # characters of a message

_WIDTHS = (1, 2, 4, 8)
_ABSURD = (0, 1, 2, 0x7F, 0x80, 0xFF, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 40, 1 << 62, 1 << 63)
_BYTES = (
    b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff" * 9 + b"\x01", b"\x80" * 11, b"\xff" * 8, b"\n",
)  # fmt: skip
_WORDS = (
    b"0", b"-1", b"1e999", b"-1e999", b"NaN", b"Infinity", b"nan", b"inf", b"null", b"true", b"{}",
    b"[]", b'""', b"9" * 20, b"9" * 400, b"9" * 5000, b"1e-400", b"0.5", b"0x" + b"f" * 5000,
    b"[" * 2000, b'{"a":' * 1500, b"\\ud800", b"\\u0000", b"\\u2028", b"\x1b[31m", b"\xed\xa0\x80",
    b"\xe2\x80\xa8", b"\r\n", b'"', b"'", b"\\", b",", b"=", b"#", b"x1e999", b"../x", b"a" * 300,
    b" " * 3000,
)  # fmt: skip


def mutated(samples: Sequence[bytes], index: int, words: Sequence[bytes] = ()) -> bytes:
    """Input number `index`: a sample with a few changes, most of them near its beginning.

    words: what the format is made of, to be put anywhere beside what is absurd in any format.
    """
    rng = random.Random(SEED << 40 | index)
    data = bytearray(samples[index % len(samples)])
    words = (*_BYTES, *words)
    for _ in range(min(int(rng.expovariate(0.7)) + 1, 8)):
        size = len(data)
        at = int(size * rng.random() ** 2)
        kind = rng.randrange(10)
        if kind == 0 and size:
            data[at % size] ^= 1 << rng.randrange(8)
        elif kind == 1 and size:
            data[at % size] = rng.randrange(256)
        elif kind == 2:
            del data[at if rng.random() < 0.5 else rng.randrange(size + 1) :]
        elif kind == 3:
            del data[at : at + rng.choice((1, 2, 4, 8, 30))]
        elif kind == 4:
            width = rng.choice(_WIDTHS)
            at -= at % width
            number = rng.choice((*_ABSURD, size)) + rng.choice((-1, 0, 0, 1))
            data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
        elif kind == 5:
            word = rng.choice(words)
            data[at : at + rng.choice((0, 0, 1, len(word)))] = word
        elif kind == 6:
            chunk = data[at : at + rng.choice((1, 3, 8, 40, 200))]
            data[at:at] = chunk * rng.choice((1, 2, 3, 50))
        elif kind == 7 and size:
            other = rng.choice(samples)
            begin = rng.randrange(len(other) + 1)
            data[at : at + rng.choice((0, 8, size))] = other[
                begin : begin + rng.choice((4, 40, size))
            ]
        elif kind == 8 and size:
            begin, width = rng.randrange(size), rng.choice((1, 4, 8, 40))
            data[at : at + width] = data[begin : begin + width]
        elif size:
            _change_number(data, at, rng)
        del data[LONGEST:]
    return bytes(data)


def _change_number(data: bytearray, at: int, rng: random.Random) -> None:
    """Put something else in the place of the next number in decimal digits, or of a word."""
    digits = b"0123456789"
    begin = next((i for i in range(at, min(at + 200, len(data))) if data[i] in digits), None)
    if begin is None:
        data[at:at] = rng.choice(_WORDS)
        return
    end = begin
    while end < len(data) and data[end] in digits:
        end += 1
    data[begin:end] = rng.choice(_WORDS)


@dataclass(frozen=True)
class Failure:
    """What an input did that it must not: `what` in words."""

    index: int
    what: str
    data: bytes

    def __str__(self) -> str:
        shown = self.data.hex() if len(self.data) <= 4096 else f"{self.data[:4096].hex()}..."
        return f"input {self.index}: {self.what}\n  {len(self.data)} bytes: {shown}"


@dataclass(frozen=True)
class Outcome:
    """Of how many inputs a reader made a value, how many it refused, and what went wrong."""

    values: int
    refused: int
    failures: tuple[Failure, ...]


def fuzz(
    read: Callable[[bytes], object],
    samples: Sequence[bytes],
    count: int,
    words: Sequence[bytes] = (),
    errors: tuple[type[BaseException], ...] = (DieletError,),
    first: int = 0,
) -> Outcome:
    """Give `count` inputs to `read`, which must return, or raise one of `errors` in one line.

    first: the number of the first.  A worker that dies is replaced, and the input that killed it
    is a failure.
    """
    place = mmap.mmap(-1, 24)  # of the worker: input, values, refusals
    numbers = memoryview(place).cast("q")
    numbers[0], count = first, first + count
    failures: list[Failure] = []
    while numbers[0] < count and len(failures) < MOST_FAILURES:
        get, put = os.pipe()
        child = os.fork()
        if not child:
            os.close(get)
            _work(read, samples, count, words, errors, numbers, put)
        os.close(put)
        with os.fdopen(get, "rb") as pipe:
            for line in pipe:
                index, what = json.loads(line)
                failures.append(Failure(index, what, mutated(samples, index, words)))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            index = numbers[0]
            what = _death(os.WTERMSIG(status))
            failures.append(Failure(index, what, mutated(samples, index, words)))
            numbers[0] += 1
        elif os.WEXITSTATUS(status):
            raise RuntimeError(f"a worker ended with code {os.WEXITSTATUS(status)}")
    return Outcome(numbers[1], numbers[2], tuple(failures))


def _death(number: int) -> str:
    if number == signal.SIGPROF:
        return f"took more than {SECONDS:g} s"
    if number == signal.SIGALRM:
        return f"hung for {PATIENCE:g} s without working"
    return f"killed the process: {signal.Signals(number).name}"


def _work(
    read: Callable[[bytes], object],
    samples: Sequence[bytes],
    count: int,
    words: Sequence[bytes],
    errors: tuple[type[BaseException], ...],
    numbers: memoryview,
    put: int,
) -> None:
    """The worker: never returns."""
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)  # libraries in other languages say there what they raise
        warnings.simplefilter("ignore")
        limited(MEMORY)
        gc.collect()
        gc.freeze()
        found = 0
        while numbers[0] < count and found < MOST_FAILURES:
            index = numbers[0]
            if what := tried(read, mutated(samples, index, words), errors, numbers):
                found += 1
                os.write(put, json.dumps([index, what[:3000]]).encode() + b"\n")
            numbers[0] += 1
        code = 0
    finally:
        os._exit(code)


def limited(room: int) -> None:
    """Bound this process' memory, and let what takes too long kill it."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * mmap.PAGESIZE + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def tried(
    read: Callable[[bytes], object],
    data: bytes,
    errors: tuple[type[BaseException], ...],
    numbers: memoryview,
) -> str:
    """Give one input to `read`; what was wrong with what it did, or nothing."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        read(data)
        numbers[1] += 1
    except errors as error:
        numbers[2] += 1
        return complaint(error)
    except BaseException as error:  # a library in Rust raises what is no Exception
        last = traceback.extract_tb(error.__traceback__)[-4:]
        where = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(last))
        return f"{type(error).__name__}: {str(error)[:300]!r} at {where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def complaint(error: BaseException) -> str:
    """What is wrong with the words of an error of our own."""
    text = str(error)
    if not text.strip() or len(text.splitlines()) > 1 or not text.isprintable():
        return f"{type(error).__name__} in words that are no line: {text[:300]!r}"
    if len(text) > MOST_WORDS:
        return f"{type(error).__name__} of {len(text)} characters: {text[:300]!r}"
    return ""


def scratch() -> Path:
    """A folder for inputs of readers that want files: in memory where that can be had.

    It goes when this process ends.
    """
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)
    folder = Path(tempfile.mkdtemp(prefix="dielet-fuzz-", dir=memory if usable else None))
    atexit.register(shutil.rmtree, folder, True)
    return folder


def rewritten(path: Path, data: bytes) -> Path:
    """`path` as a new file: an old one may still be mapped, and must not shrink under its map."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


if __name__ == "__main__":  # replay: python -m tests.fuzz.mutate READER HEX
    from tests.fuzz.readers import READERS

    READERS[sys.argv[1]].make().read(bytes.fromhex(sys.argv[2]))
