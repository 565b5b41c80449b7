"""Where output goes: results on stdout, everything else on stderr, and nothing twice."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dielet.cli import streams

Report = Callable[[int, int, str], None]
"""Called with what is done, what there is in all (bytes), and the name of what comes next."""


class Console:
    """`verbosity` is -1 (only results and errors), 0, or 1 (details too).

    With `as_json`, stdout gets the one object given to `result` and nothing else.
    """

    def __init__(self, as_json: bool = False, verbosity: int = 0) -> None:
        self.as_json = as_json
        self.verbosity = verbosity

    def out(self, text: str = "", end: str = "\n") -> None:
        """A line, or a piece, of what the command is for."""
        if not self.as_json:
            streams.to_stdout(text + end)

    def result(self, value: Mapping[str, Any]) -> None:
        """The one object of `--json`; nothing without it."""
        if self.as_json:
            utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            text = json.dumps(value, ensure_ascii=not utf8, allow_nan=False)
            streams.to_stdout(text + "\n")

    def note(self, text: str = "") -> None:
        if self.verbosity >= 0:
            self.error(text)

    def detail(self, text: str) -> None:
        if self.verbosity >= 1:
            self.error(text)

    def error(self, text: str) -> None:
        streams.to_stderr(text + "\n")

    @contextmanager
    def progress(self, label: str) -> Iterator[Report]:
        """A bar on a terminal, a line per quarter elsewhere, nothing when quiet."""
        if self.verbosity < 0:
            yield lambda done, total, name: None
        elif sys.stderr.isatty():
            with _bar(label) as report:
                yield report
        else:
            yield _lines(label, self.note)


@contextmanager
def _bar(label: str) -> Iterator[Report]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=RichConsole(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total)

        yield report


def _lines(label: str, note: Callable[[str], None]) -> Report:
    last = -1

    def report(done: int, total: int, name: str) -> None:
        nonlocal last
        quarter = 4 * done // total if total else 4
        if quarter > last:
            last = quarter
            note(f"{label}: {25 * quarter} % of {size(total)}")

    return report


def size(count: float) -> str:
    """Bytes for people: 1.2 GB (1e9)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def table(rows: Mapping[str, str]) -> str:
    """Two aligned columns."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())
