"""Say where the time of a trace went, and what to do about it."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dielet.cli.console import Console
from dielet.cli.exits import DONE, FAILED
from dielet.cli.parser import place
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.analysis.api import Analyzed
    from dielet.analysis.schema import Budget

HELP = "say where the time of a trace went, and what to do about it"
WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trace", type=place, metavar="TRACE.pb|DIR",
        help="a trace of `run` or `simulate --profile`; with --diff also a model directory",
    )  # fmt: skip
    parser.add_argument(
        "--diff", type=place, metavar="OTHER",
        help="compare with another trace, or with another compiled model, from before",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=place, metavar="FILE.toml",
        help="limits that the trace must keep; exit code 1 with the lines that fail",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=place, metavar="NAME|PATH.toml",
        help="take the peaks from this device, not from the trace",
    )  # fmt: skip
    parser.add_argument(
        "--window", metavar="FROM:TO", help="only the steps that begin and end in this time, in ms"
    )
    parser.add_argument(
        "--what-if", action="append", default=[], metavar="KIND=FACTOR",
        help="what a run would take if these commands, or this engine, took FACTOR of their time",
    )  # fmt: skip
    parser.add_argument(
        "--html", type=place, metavar="OUT.html",
        help="write a report for the browser: one file, without anything outside it",
    )  # fmt: skip
    parser.add_argument("--csv", type=place, metavar="DIR", help="write all tables as CSV")
    parser.add_argument("--parquet", type=place, metavar="DIR", help="write all tables as Parquet")
    parser.add_argument(
        "--sql", metavar="SELECT", help="ask the tables: commands, steps, operations, gaps, ..."
    )


def run(args: argparse.Namespace, console: Console) -> int:
    if Path(args.trace).is_dir():
        return _programs(args, console)
    import msgspec

    from dielet.analysis.api import Asked, examine
    from dielet.analysis.window import parse_window

    asked = Asked(
        device=args.device,
        diff=args.diff,
        budget=args.budget,
        window_ms=None if args.window is None else parse_window(args.window),
        what_if=_factors(args.what_if) or None,
    )
    done = examine(args.trace, asked)
    written = _write(args, console, done)
    if args.sql is not None:
        _ask(args.sql, console, done)
    else:
        console.result(msgspec.to_builtins(done.found))
        if not console.as_json:
            from dielet.analysis.show import analysis_parts, rendered

            console.out(rendered(analysis_parts(done.found), *screen()), end="")
    kept = _told(done.found.budget, console)
    return DONE if written and kept else FAILED


def _told(budget: Budget | None, console: Console) -> bool:
    """Whether the budget, if there is one, was kept; the lines that fail are errors."""
    if budget is None:
        return True
    for line in budget.lines:
        if not line.passed:
            console.error(f"dielet analyze: {budget.path}: {line.text}")
    return budget.passed


def screen() -> tuple[int, bool]:
    """How wide, and whether in colour, standard output is written to."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    return max(width, 60), sys.stdout.isatty()


def _factors(options: Sequence[str]) -> dict[str, float]:
    found = {}
    for text in options:
        name, equals, factor = text.rpartition("=")
        try:
            found[name] = float(factor)
        except ValueError:
            equals = ""
        if not equals or not 0 <= found[name] < math.inf:
            raise UsageError(
                f"--what-if is {text!r}; it takes KIND=FACTOR, for example weight_copy=0.5"
            )
    return found


def _programs(args: argparse.Namespace, console: Console) -> int:
    import msgspec

    from dielet.analysis.programs import compare_programs
    from dielet.analysis.show import diff_parts, rendered

    if args.diff is None:
        raise UsageError(
            f"{args.trace} is a directory; give a trace, or another compiled model with --diff"
        )
    for name in ("budget", "html", "csv", "parquet", "sql", "window"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} needs a trace; {args.trace} is a directory")
    diff = compare_programs(args.diff, args.trace)
    console.result(msgspec.to_builtins(diff))
    console.out(rendered(diff_parts(diff), *screen()), end="")
    return 0


def _write(args: argparse.Namespace, console: Console, done: Analyzed) -> bool:
    """Writes what is asked for; false when something of it cannot be written, which is told.

    What was found is worth telling all the same.
    """
    from dielet.analysis.export import write_csv, write_parquet
    from dielet.analysis.html import write_html
    from dielet.files import CannotWrite

    def report(place: str) -> str:
        return f"report: {write_html(done, place)}"

    def tables(write: Callable[..., list[Path]], folder: str) -> str:
        files = write(done.table, done.steps, done.found, folder)
        return f"{len(files)} tables: {', '.join(path.name for path in files)} in {folder}"

    written = True
    for where, write in (
        (args.html, report),
        (args.csv, partial(tables, write_csv)),
        (args.parquet, partial(tables, write_parquet)),
    ):
        if where is not None:
            try:
                console.note(write(where))
            except CannotWrite as error:
                console.error(f"dielet analyze: error: {error}")
                written = False
    return written


def _ask(text: str, console: Console, done: Analyzed) -> None:
    from dielet.analysis.sql import query

    answer = query(done.table, done.steps, done.found, text)
    rows = [[_plain(value) for value in row] for row in answer.rows]
    console.result({"columns": answer.columns, "rows": rows, "more": answer.more})
    for line in _lines(answer.columns, rows):
        console.out(line)
    if answer.more:
        console.note(f"only the first {len(rows):,} rows; --csv and --parquet write all")


def _plain(value: object) -> object:
    """What JSON has no form for, as text: bytes in hexadecimal digits, and infinity."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _lines(columns: Sequence[str], answer: Sequence[Sequence[object]]) -> list[str]:
    """Aligned columns; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in answer]
    widths = [
        max(len(name), *(len(row[n]) for row in cells)) if cells else len(name)
        for n, name in enumerate(columns)
    ]
    rows = [list(columns), *cells]
    numeric = [
        bool(answer) and all(isinstance(row[n], int | float | None) for row in answer)
        for n in range(len(widths))
    ]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
