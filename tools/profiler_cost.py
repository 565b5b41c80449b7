"""What profiling costs on this machine: the table of docs/profiling.md.

    python -m tools.profiler_cost MODEL_DIR ... [--rounds 30] [--steps 40]

Recording: decode steps with and without a recorder, in turns; the median over rounds of the ratio
of their medians.  Writing and reading: processor time of one thread per slice of the merged file,
once the layout of the programs is known, which is done once per session and given beside it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from dielet import profiling
from dielet.host import load_runtime
from dielet.host.runtime import Runtime, State
from dielet.profiler.reader import read_trace
from dielet.profiler.recorder import Recorder
from dielet.profiler.session import MEMORY, _sources
from dielet.profiler.writer import TraceWriter, Written
from dielet.program.records import Execution

PROMPT, CONTEXT, REPEATS = 16, 400, 5
TOKEN = np.zeros(1, np.int32)


def decode(runtime: Runtime, state: State, steps: int) -> list[float]:
    """Seconds of each step, with the work of the host that generation does around it."""
    seconds = []
    for _ in range(steps):
        if state.past >= CONTEXT:
            state.rewind(PROMPT)
        begin = time.perf_counter()
        runtime.forward(state, TOKEN)
        for work in ("sample", "detokenize"):
            with profiling.mark(runtime, work):
                pass
        seconds.append(time.perf_counter() - begin)
    return seconds


def recording(runtime: Runtime, state: State, rounds: int, steps: int) -> tuple[float, float]:
    """(ratio of a step with the profiler to one without, milliseconds of the latter)."""
    ratios, plain = [], []
    for number in range(rounds):
        found = {}
        for on in (number % 2 == 0, number % 2 == 1):
            if on:
                recorder = Recorder(MEMORY, 0, Path(tempfile.gettempdir()))
                recorder.attach(runtime)
                profiling.listener = recorder.host_work
            found[on] = median(decode(runtime, state, steps))
            runtime.observer = profiling.listener = None
        ratios.append(found[True] / found[False])
        plain.append(found[False])
    return median(ratios), 1000 * median(plain)


def written(folder: Path, recorder: Recorder, runs: list[Execution], compress: bool
            ) -> tuple[float, Written]:  # fmt: skip
    """(processor seconds, what was written) of a merged file."""
    commands = recorder.ring.weight
    writer = TraceWriter(folder, "t", _sources(recorder), recorder.last, {}, commands=commands,
                         single=False, compress=compress)  # fmt: skip
    begin = time.thread_time()
    done = writer.write(runs)
    return time.thread_time() - begin, done


def files(runtime: Runtime, state: State, steps: int, folder: Path) -> list[str]:
    """Cells of the table: writing plain and compressed, reading."""
    recorder = Recorder(1 << 30, 0, folder)
    recorder.attach(runtime)
    decode(runtime, state, steps)
    recorder.detach()
    runtime.observer = None
    runs = list(recorder.executions())
    cells = []
    for compress in (False, True):
        few, many = [], []
        for _ in range(REPEATS):
            few.append(written(folder, recorder, runs[:4], compress)[0])
            seconds, done = written(folder, recorder, runs, compress)
            many.append(seconds)
        slices = done.commands * (len(runs) - 4) / len(runs)
        rate = slices / (min(many) - min(few)) / 1e6
        size = done.files[0].stat().st_size / done.commands
        cells.append(f"{rate:.2f} M/s, {size:.0f} B")
        if not compress:
            setup = f"{1000 * min(few):.0f} ms"
            begin = time.thread_time()
            read_trace(done.files[0])
            reading = f"{done.commands / (time.thread_time() - begin) / 1e6:.2f} M/s"
    return [cells[0], cells[1], setup, reading]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--traced", type=int, default=400, help="steps of the trace")
    options = parser.parse_args()
    print("| model | step | with the profiler | written | compressed | set-up | read |")
    print("|---|---|---|---|---|---|---|")
    for model in options.models:
        runtime = load_runtime(model, profiler=False)
        state = runtime.new_state()
        runtime.forward(state, np.zeros(PROMPT, np.int32))
        decode(runtime, state, 10)
        ratio, step = recording(runtime, state, options.rounds, options.steps)
        with tempfile.TemporaryDirectory() as folder:
            cells = files(runtime, state, options.traced, Path(folder))
        name = runtime.spec.name or runtime.spec.model_type
        cells = [
            f"{name} {runtime.manifest.weights}",
            f"{step:.2f} ms",
            f"{ratio - 1:+.1%}",
            *cells,
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
        runtime.close()


if __name__ == "__main__":
    main()
