"""Hold the simulator's predictions for this machine against what the machine does.

    python tools/validate_simulator.py MODEL_DIR ... [--threads 1,2] [--json OUT]

For every model directory and number of threads: prompts of 128 and 512 tokens, and one token at
contexts 64 and 1024. Measured are the time from call to call, the commands' own time stamps by
kind, and the time that workers wait; predicted are the same. Nothing is fitted: the calibration
knows single commands only. Run it on a machine with nothing else to do.

A virtual machine's memory can change its speed by half within a minute. So the calibration is made
anew for each case, as far as the case needs it, between the two halves of the case's rounds, and
the bandwidth is measured again after them: when the halves, or the bandwidths, differ by more than
5 %, the case is repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import numpy as np

from dielet.devices import Device, read_device
from dielet.formats.parallel import available_cores
from dielet.host import Runtime, load_runtime
from dielet.host.runtime import Execution, State
from dielet.host.tables import Tables
from dielet.program.commands import Run
from dielet.program.commands.linear import weight_format
from dielet.simulator import simulate_program
from dielet.simulator.calibrate import Scope, calibrate, host_toml, weight_bandwidth
from dielet.simulator.microbench import Bench

CASES = {
    "prefill 128": [(at, 128) for at in (0,)],
    "prefill 512": [(at, 128) for at in (0, 128, 256, 384)],
    "decode at 64": [(64, 1)],
    "decode at 1024": [(1024, 1)],
}
BYTE = 0x3C  # a cache of ordinary numbers, all of it resident
LONG_ENOUGH = 1.5  # seconds of rounds
ROUNDS = (5, 40)  # at least, at most
STEADY = 0.05  # change of the bandwidth, and of the rounds, that a case may have
ATTEMPTS = 6


@dataclass
class Times:
    """Milliseconds: from call to call, of each kind of command on all workers, and of waiting."""

    whole: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)
    waiting: float = 0.0

    def add_kinds(self, names: list[str], spans: np.ndarray, gaps: float) -> None:
        for name, span in zip(names, spans.tolist(), strict=True):
            self.kinds[name] = self.kinds.get(name, 0.0) + span
        self.waiting += gaps


def rounds_of(runtime: Runtime, steps: list[tuple[int, int]]) -> list[Times]:
    """Rounds of the same steps, as many as there are in some seconds."""
    _once(runtime, steps)
    found: list[Times] = []
    begun = perf_counter_ns()
    while len(found) < ROUNDS[0] or (
        len(found) < ROUNDS[1] and perf_counter_ns() - begun < LONG_ENOUGH * 1e9
    ):
        found.append(_once(runtime, steps))
    return found


def medians(rounds: list[Times]) -> Times:
    return Times(
        whole=median(t.whole for t in rounds),
        kinds={kind: median(t.kinds[kind] for t in rounds) for kind in rounds[0].kinds},
        waiting=median(t.waiting for t in rounds),
    )


def _once(runtime: Runtime, steps: list[tuple[int, int]]) -> Times:
    times, state = Times(), filled(runtime)
    executions: list[tuple[Tables, list[np.ndarray]]] = []
    noting = 0

    def note(execution: Execution) -> None:
        nonlocal noting
        begun = perf_counter_ns()
        executions.append((execution.tables, [s.copy() for s in execution.tables.stamps]))
        noting += perf_counter_ns() - begun

    tokens = np.full(runtime.chunk, 7, np.int32)
    state.past = steps[-1][0]
    runtime.forward(state, tokens[: steps[-1][1]])  # as in a run, where one step follows another
    runtime.observer = note
    begun = perf_counter_ns(), runtime.ticks()
    for number, (past, rows) in enumerate(steps):
        state.past = past
        runtime.forward(state, tokens[:rows], number == len(steps) - 1)
    ended = perf_counter_ns(), runtime.ticks()
    runtime.observer = None
    tick = (ended[0] - begun[0]) / (ended[1] - begun[1]) / 1e6  # ms
    times.whole = (ended[0] - begun[0] - noting) / 1e6
    for tables, stamps in executions:
        commands = [[piece.command for piece in mine] for mine in tables.pieces]
        first = min(s[0, 0] for s, mine in zip(stamps, commands, strict=True) if mine)
        last = max(s[len(mine) - 1, 1] for s, mine in zip(stamps, commands, strict=True) if mine)
        for mine, s in zip(commands, stamps, strict=True):
            if mine:
                kinds = [tables.program.commands[n].kind for n in mine]
                before = np.concatenate([[first], s[: len(mine) - 1, 1]])
                gaps = (s[: len(mine), 0] - before).sum() + last - s[len(mine) - 1, 1]
                spans = s[: len(mine), 1] - s[: len(mine), 0]
                times.add_kinds(kinds, spans * tick, float(gaps) * tick)
    return times


_states: dict[int, State] = {}


def filled(runtime: Runtime) -> State:
    if id(runtime) not in _states:
        _states.clear()
        state = runtime.new_state()
        state.kv.fill(BYTE)
        _states[id(runtime)] = state
    return _states[id(runtime)]


def predicted(runtime: Runtime, device: Device, steps: list[tuple[int, int]]) -> Times:
    times = Times()
    workers = runtime.threads
    programs = [(_name(runtime, past, rows), Run(past, rows)) for past, rows in steps]
    programs.append(("head_1", Run(0, 1)))
    for name, run in programs:
        timing = simulate_program(runtime.files.program(name), device, run, workers)
        times.whole += (timing.duration + device.launch) / 1e9
        names = [timing.program.commands[n].kind for n in timing.commands]
        waited = sum(engine["waiting_ps"] for engine in timing.engines())
        times.add_kinds(names, (timing.walk.end - timing.walk.start) / 1e9, waited / 1e9)
    return times


def _name(runtime: Runtime, past: int, rows: int) -> str:
    from dielet.program.select import program_name

    return program_name(runtime.manifest.kv_ladder, runtime.chunk, past, rows)


def formats(runtime: Runtime) -> tuple[str, ...]:
    """The formats of the weights that the model's linears read."""
    found = {
        weight_format(c.attrs).name
        for name in (runtime.manifest.programs[0].name, "head_1")
        for c in runtime.files.program(name).commands
        if c.kind == "linear"
    }
    return tuple(sorted(found))


def steadily(
    runtime: Runtime, bench: Bench, steps: list[tuple[int, int]]
) -> tuple[Device, Times, tuple[float, float]]:
    """(device, measured times, GB/s before and after): of the first attempt in which the memory
    and the rounds kept their speed, or else of the one in which they changed least."""
    scope = Scope(formats(runtime), rows=(1,) if steps[0][1] == 1 else (1, 128))
    found = []
    for _ in range(ATTEMPTS):
        earlier = rounds_of(runtime, steps)
        calibration = calibrate(scope=scope)
        later = rounds_of(runtime, steps)
        bandwidth = weight_bandwidth(bench, available_cores())
        which = min(runtime.threads, 2) - 1
        assumed, ended = (calibration.alone, calibration.together)[which], bandwidth[which]
        drift = abs(medians(later).whole / medians(earlier).whole - 1)
        moved = max(abs(ended / assumed - 1), drift)
        device = read_device(host_toml(calibration), "host.toml")
        found.append((moved, device, medians(earlier + later), (assumed / 1e9, ended / 1e9)))
        if moved <= STEADY:
            break
    return min(found, key=lambda one: one[0])[1:]


def validate(folder: Path, bench: Bench, threads: int) -> dict[str, dict]:
    runtime = load_runtime(folder, threads)
    found = {}
    for case, steps in CASES.items():
        if steps[-1][0] + steps[-1][1] > runtime.max_seq_len or steps[0][1] > runtime.chunk:
            continue
        device, a, bandwidth = steadily(runtime, bench, steps)
        b = predicted(runtime, device, steps)
        found[case] = {
            "measured": asdict(a),
            "predicted": asdict(b),
            "error": b.whole / a.whole - 1,
            "gigabytes_per_second": bandwidth,
        }
        print(f"{folder.name:<16} {threads} threads  {case:<15} measured {a.whole:9.2f} ms  "
              f"predicted {b.whole:9.2f} ms  {b.whole / a.whole - 1:+6.1%}  "
              f"at {bandwidth[0]:.1f} ... {bandwidth[1]:.1f} GB/s")  # fmt: skip
        for kind in a.kinds:
            if a.kinds[kind] > 0.01 * a.whole:
                error = b.kinds.get(kind, 0) / a.kinds[kind] - 1
                print(
                    f"    {kind:<10} {a.kinds[kind]:9.3f} {b.kinds.get(kind, 0):9.3f} {error:+6.1%}"
                )
        print(f"    {'waiting':<10} {a.waiting:9.3f} {b.waiting:9.3f}")
        between = [t.whole - (sum(t.kinds.values()) + t.waiting) / threads for t in (a, b)]
        print(f"    {'between':<10} {between[0]:9.3f} {between[1]:9.3f}", flush=True)
    runtime.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bench = Bench()
    found = {
        f"{model.name}, {threads} threads": validate(model, bench, threads)
        for model in args.models
        for threads in map(int, args.threads.split(","))
    }
    errors = [abs(case["error"]) for cases in found.values() for case in cases.values()]
    print(f"end to end: median error {median(errors):.1%}, largest {max(errors):.1%}, "
          f"of {len(errors)} cases")  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
