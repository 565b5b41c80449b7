"""Sessions: from when to when is profiled, and what is left behind."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dielet import __version__, profiling
from dielet.devices import Device
from dielet.errors import DieletError, UsageError
from dielet.host.limits import probes, read_bandwidth
from dielet.host.runtime import Runtime
from dielet.profiler import signals
from dielet.profiler.recorder import HOST_MARKS, Recorder, instances
from dielet.profiler.tracks import Place
from dielet.profiler.work import Peaks
from dielet.profiler.writer import Attributes, Source, TraceWriter, Written, free_stem

MEMORY, DISK = 64 << 20, 8 << 30
PROBES = 3  # runs that a limit is the best of: neighbours only ever slow one down
HOST = "host"
BROWSER_BYTES = 500_000_000
"""A browser gives a trace about 2 GB, and needs up to four times a file's uncompressed size."""

_lock = threading.Lock()
_running: Session | None = None


@dataclass(frozen=True)
class Summary:
    """What a session recorded and wrote.

    executions: of programs with their head; commands: slices on engine tracks; dropped: commands
    whose records did not fit the buffer any more, as dropped_host_slices are; left_out: files of
    single executions that the disk had no room for.  run_s: between start and stop; write_s: after.
    """

    executions: int
    commands: int
    dropped: int
    dropped_executions: int
    host_slices: int
    flows: int
    run_s: float
    write_s: float
    file_bytes: int
    files: int
    dropped_host_slices: int = 0
    left_out: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lost = f", {self.dropped:,} more dropped" if self.dropped else ""
        return (
            f"{self.executions:,} executions, {self.commands:,} commands{lost}, "
            f"{self.flows:,} dependencies, {self.host_slices:,} slices of the host; "
            f"ran {self.run_s:.2f} s, wrote {self.files} files in {self.write_s:.2f} s, "
            f"{self.file_bytes / 1e6:.1f} MB together in the first"
        )


class Session:
    """One profiling session; as a context manager it covers its block.

    output_dir: made if it is not there.  prefix: of the file names.  executions: whether each
    execution also gets a file of its own.  compress: write compressed packets.  memory, disk: the
    most that records take while the session runs, in bytes; beyond that the oldest are dropped.
    """

    def __init__(
        self,
        output_dir: str | Path = ".",
        *,
        prefix: str = "dielet",
        compress: bool | None = None,
        executions: bool = True,
        memory: int = MEMORY,
        disk: int = DISK,
    ) -> None:
        if not prefix or Path(prefix).name != prefix:
            raise UsageError(f"prefix is {prefix!r}; it must be the beginning of a file name")
        if not (isinstance(memory, int) and isinstance(disk, int)):
            raise UsageError(f"memory is {memory!r} and disk {disk!r}; both take a number of bytes")
        if memory < 1 << 16 or disk < 0:
            raise UsageError(
                f"memory is {memory} and disk {disk} bytes; at least {1 << 16} and 0 are needed"
            )
        self.output_dir = Path(os.path.expanduser(output_dir))
        self._asked = self._folder = self.output_dir  # `_folder` is absolute once it has started
        self.prefix, self.compress, self.executions = prefix, compress, executions
        self.files: list[Path] = []
        self._memory, self._disk = memory, disk
        self._summary: Summary | None = None
        self._recorder: Recorder | None = None
        self._unwritten: Recorder | None = None  # its files did not find room
        self._process = 0
        self._begin = self._run_s = 0.0
        self._only_asked = False

    def start(self) -> Session:
        """Begin to record, from nothing.

        Raises DieletError when its directory cannot be written, UsageError when another session is
        running; one that began with the process
        (DIELET_PROFILER, profiler=True) makes way, and what it has recorded is forgotten.
        """
        global _running
        with _lock:
            if _running is not None and not _running._only_asked:
                raise UsageError(
                    "a profiling session is running already; stop it before starting another"
                )
            self._forget()
            self._asked, self._folder = self.output_dir, self.output_dir.absolute()
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._folder):
                    pass  # better to know it now than when there is something to write
            except OSError as error:
                raise DieletError(
                    f"output_dir {self.output_dir} cannot be made or written: {error.strerror}; "
                    "choose another"
                ) from None
            if _running is not None:
                _running._abandon()
            self.files, self._summary = [], None
            self._stem = free_stem(self._folder, self.prefix)
            self._recorder = Recorder(self._memory, self._disk, self._folder)
            self._process = os.getpid()
            for runtime in list(profiling.runtimes):
                self._consider(runtime)
            profiling.on_load = self._consider
            profiling.listener = self._recorder.host_work
            _running = self
            signals.catch(_finish)
            _finish_at_exit()
            self._begin = time.perf_counter()
        return self

    def stop(self) -> list[Path]:
        """End, and write the files, the merged one first.  Nothing recorded: no files.

        When they cannot be written the records stay, and it can be called again; `output_dir` may
        be set to another place before.  Ctrl-C and the like wait until the files are there; a
        second one gives them up.
        """
        if self._recorder is None and self._unwritten is None:
            raise UsageError("this profiling session is not running; start it first")
        try:
            with signals.waiting("writing the profile"):
                if recorder := self._end():
                    self._unwritten = recorder
                    self._run_s = time.perf_counter() - self._begin
                recorder = self._unwritten
                if recorder is None:
                    return self.files  # another thread has stopped it meanwhile
                begin = time.perf_counter()
                written = self._write(recorder, self._run_s)
                self._unwritten = None
                self._finish(recorder, written, time.perf_counter() - begin)
                recorder.ring.close()
        finally:
            signals.release()
        return self.files

    def discard(self) -> None:
        """End, and forget what was recorded; nothing happens when it is not running."""
        recorder = self._end()
        if recorder is not None:
            recorder.ring.close()
        self._forget()
        signals.release()

    def summary(self) -> Summary:
        """What the finished session recorded."""
        if self._unwritten is not None:
            raise UsageError(
                "the files of the profiling session could not be written; make room, or set its "
                "output_dir to another place, and stop it again"
            )
        if self._summary is None:
            raise UsageError("the profiling session has not been stopped yet; stop it first")
        return self._summary

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(self, *error: object) -> None:
        if self._recorder is not None:
            self.stop()

    def _consider(self, runtime: Runtime) -> None:
        asked = profiling.runtimes.get(runtime)
        if self._recorder is not None and asked is not False and (asked or not self._only_asked):
            self._recorder.attach(runtime)

    def _end(self) -> Recorder | None:
        """Stop recording; the recorder, if there was one."""
        global _running
        with _lock:
            recorder, self._recorder = self._recorder, None
            if recorder is None:
                return None
            profiling.on_load = profiling.listener = None
            _running = None
        recorder.detach()
        return recorder

    def _abandon(self) -> None:
        """Make way for a session that was asked for; called with the lock held."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.detach()
            recorder.ring.close()

    def _forget(self) -> None:
        """Give up what could not be written."""
        recorder, self._unwritten = self._unwritten, None
        if recorder is not None:
            recorder.ring.close()

    def _finish(self, recorder: Recorder, written: Written, write_s: float) -> None:
        """Say what there is now."""
        self.files = [self._named(path) for path in written.files]
        self._summary = Summary(
            executions=written.executions,
            commands=written.commands,
            dropped=recorder.lost,
            dropped_executions=recorder.dropped,
            host_slices=written.host,
            flows=written.flows,
            run_s=self._run_s,
            write_s=write_s,
            file_bytes=written.files[0].stat().st_size if self.files else 0,
            files=len(self.files),
            dropped_host_slices=recorder.marks_lost,
            left_out=written.left_out,
        )
        self._warn(written)

    def _named(self, path: Path) -> Path:
        """A file as the user named its folder, unless that means another one by now."""
        if self.output_dir.absolute() == self._folder:
            return self.output_dir / path.name
        return path

    def _write(self, recorder: Recorder, run_s: float) -> Written:
        if recorder.scale is None or (not len(recorder.ring) and not recorder.marked):
            return Written()
        sources = _sources(recorder)
        writer = TraceWriter(
            self._place(),
            self._stem,
            sources,
            recorder.last,
            _attributes(recorder, sources, run_s),
            commands=recorder.commands,
            single=self.executions,
            compress=self.compress,
        )
        return writer.write(recorder.executions(), recorder.host_slices(), self._closing(run_s))

    def _place(self) -> Path:
        """The folder to write into; after files found no room perhaps another than at the start."""
        self.output_dir = Path(os.path.expanduser(self.output_dir))
        if self.output_dir != self._asked:
            self.output_dir.mkdir(parents=True, exist_ok=True)
            self._asked, self._folder = self.output_dir, self.output_dir.absolute()
        return self._folder

    def _closing(self, run_s: float) -> Callable[[Written], Attributes]:
        """What is only known when all is written."""
        begin = time.perf_counter()

        def closing(written: Written) -> Attributes:
            write_s = time.perf_counter() - begin
            return {
                "write_ns": round(write_s * 1e9),
                "run_and_write_ns": round((run_s + write_s) * 1e9),
            }

        return closing

    def _warn(self, written: Written) -> None:
        assert self._summary is not None
        if self._summary.dropped:
            _say(
                f"the profiler's buffer was full: {self._summary.dropped:,} commands of the "
                f"{self._summary.dropped_executions:,} oldest program runs were dropped; profile "
                "a shorter part, or give more memory= or disk="
            )
        if self._summary.dropped_host_slices:
            _say(
                f"the oldest {self._summary.dropped_host_slices:,} slices of the host's work were "
                f"dropped: a profile keeps {HOST_MARKS:,}; profile a shorter part"
            )
        if self._summary.left_out:
            _say(
                f"the disk is full: the files of all {self._summary.left_out:,} single executions "
                "were left out, the merged one has everything; free some room, or choose another "
                "output directory"
            )
        if written.nbytes > BROWSER_BYTES:
            _say(
                f"{written.files[0].name} has {written.nbytes / 1e9:.1f} GB of packets, more than "
                "browsers open: run `trace_processor_shell --httpd` on it and then open "
                "https://ui.perfetto.dev, or open one of the files of single executions"
            )


def begin_with_process(session: Session | None = None) -> None:
    """Start the session of models that are always profiled, if no session is running.

    It ends with the process.  session: by default one whose files go to the folder that
    DIELET_PROFILER_DIR names.
    """
    global _begun
    if _begun or _running is not None:
        return
    _begun = True
    session = session or Session(os.environ.get(profiling.FOLDER) or ".")
    session._only_asked = True
    session.start()


_begun = False


@cache
def _finish_at_exit() -> None:
    """A session that is running when the process ends is written then."""
    atexit.register(_finish)


def _finish() -> None:
    session = _running
    if session is None or session._process != os.getpid():  # not in a fork of the process
        return
    try:
        files = session.stop()
    except (DieletError, OSError) as error:  # what the program did was done all the same
        _say(f"no profile was written: {error}")
        return
    except (KeyboardInterrupt, SystemExit):  # the process is ending anyway
        return
    if files:
        _say(f"profile written: {files[0]}")


def _sources(recorder: Recorder) -> dict[int, Source]:
    sources = {}
    used = recorder.used()
    for group, attached in enumerate(used):
        runtime = attached.runtime
        label = f"model {group + 1}: {_model_name(runtime)}" if len(used) > 1 else ""
        # Programs for other devices run here with this machine's kernels, which skip padding.
        device = replace(runtime.files.device(), padding="skipped")
        clock = "measured" if device.name == HOST else "run on the host, measured"
        place = Place(device, clock, runtime.manifest.chiplets, group, label)
        source = Source(place, _peaks(device, runtime.threads))
        for instance in range(attached.first, attached.first + instances(runtime)):
            sources[instance] = source
    return sources


def _model_name(runtime: Runtime) -> str:
    return runtime.spec.name or runtime.spec.model_type


def _peaks(device: Device, threads: int) -> Peaks:
    """The limits of one of `threads` workers when all of them work, measured."""
    memories = {"dram": read_bandwidth(threads) * 1e9 / threads}
    return Peaks(memories, {}, dict.fromkeys(device.engine, _rates(threads)))


@cache
def _rates(threads: int) -> dict[str, float]:
    """Operations per second of a worker by number format: the best of a few short runs."""
    kinds = {"int8": "int8", "bf16": "bf16", "f32": "fp32"}
    return {
        name: max(probes().rate(kind, threads) for _ in range(PROBES)) / threads
        for name, kind in kinds.items()
    }


def _attributes(recorder: Recorder, sources: dict[int, Source], run_s: float) -> Attributes:
    devices = {a.runtime.files.device().name: a.runtime.files.device() for a in recorder.used()}
    texts = "".join(device.text for device in devices.values())
    models = [f"{_model_name(a.runtime)} ({a.runtime.manifest.weights})" for a in recorder.used()]
    threads = max(a.runtime.threads for a in recorder.used())
    peaks = next(source.peaks for source in sources.values() if source.peaks is not None)
    return {
        "dielet_version": __version__,
        "model": ", ".join(models),
        "device": ", ".join(devices),
        "device_sha256": hashlib.sha256(texts.encode()).hexdigest(),
        "device_clock": "measured",
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "dropped_command_count": recorder.lost,
        "dropped_host_slice_count": recorder.marks_lost,
        "run_ns": round(run_s * 1e9),
        **peaks.attributes("worker", threads),
    }


def _say(line: str) -> None:
    print(f"dielet: {line}", file=sys.stderr, flush=True)
