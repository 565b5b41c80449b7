"""Run a script that was written for optimum-rbln and rebel.profiler, unchanged."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType

from dielet.cli.console import Console
from dielet.cli.parser import place
from dielet.errors import DieletError, MissingFile

HELP = "run a script written for optimum.rbln and rebel.profiler, unchanged"
TOOL = "optimum-rbln-cli"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", type=place, metavar="SCRIPT.py", help=f"the script, or {TOOL}")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    parser.add_argument(
        "--override", action="store_true", help="even where the vendor's packages are installed"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    from dielet.compat import rbln

    path = Path(args.script)
    tool = args.script == TOOL and not path.exists()
    if not tool and not path.is_file():
        raise MissingFile(f"{path} is no file; name the script to run, or {TOOL}")
    rbln.install(args.override)
    with redirect_stdout(sys.stderr if console.as_json else sys.stdout):
        code = _tool(args.args) if tool else _script(path, args.args)
    console.result({"script": str(path), "exit_code": code})
    return code


def _tool(words: list[str]) -> int:
    from dielet.cli.optimum import main

    return main(words)


def _script(path: Path, words: list[str]) -> int:
    """Run it as `python SCRIPT.py` would; its exit code."""
    argv, folder = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(path), *words], os.path.dirname(os.path.abspath(path))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return _exit_code(end.code)
    except DieletError:
        raise  # said in one line, as everywhere
    except Exception as error:  # the script's own: shown as Python shows it
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _own(error.__traceback__, path))
        return 1
    finally:
        sys.argv, sys.path[0] = argv, folder
    return 0


def _own(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """The part of a traceback that begins in the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    return trace


def _exit_code(code: object) -> int:
    """As Python ends: a text goes to stderr and means 1."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
