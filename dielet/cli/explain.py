"""Print a program of a model directory: its commands, with operands, waits, signals and bytes.

Or what the calibration of a model came to.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console
from dielet.cli.parser import did_you_mean, place
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.image import Manifest
    from dielet.program import Program

HELP = "print a program's commands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=place, metavar="DIR", help="a model directory")
    parser.add_argument(
        "--program", metavar="NAME", help="default: the decode program of the smallest KV capacity"
    )
    parser.add_argument("--chiplet", type=int, metavar="N", help="only this chiplet's commands")
    parser.add_argument(
        "--accuracy", action="store_true",
        help="instead: what calibration came to, layer by layer (of a model with --calibrate)",
    )  # fmt: skip


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.image import read_manifest
    from dielet.program.explain import explain

    directory = Path(args.model)
    manifest = read_manifest(directory)
    if args.accuracy:
        explain_accuracy(directory, console)
        return
    program = read_program(directory, manifest, args.program)
    if args.chiplet is not None and not 0 <= args.chiplet < program.chiplets:
        raise UsageError(
            f"chiplet is {args.chiplet}; {program.name} has chiplets 0 to {program.chiplets - 1}"
        )
    console.note(f"programs: {', '.join(p.name for p in manifest.programs)}")
    if console.as_json:
        console.result(program_object(program, args.chiplet))
        return
    for line in explain(program, args.chiplet):
        console.out(line)


def explain_accuracy(directory: Path, console: Console) -> None:
    import msgspec

    from dielet.cli.accuracy import layer_lines, summary
    from dielet.image.accuracy import read_accuracy

    found = read_accuracy(directory)
    console.result(msgspec.to_builtins(found))
    console.out(summary(found))
    for line in layer_lines(found):
        console.out(line)


def read_program(directory: Path, manifest: Manifest, name: str | None) -> Program:
    from dielet.image.file import open_image
    from dielet.image.names import DECODER, HEAD

    phases = {program.name: program.phase for program in manifest.programs}
    if name is None:
        name = next(p.name for p in manifest.programs if p.phase == "decode")
    if name not in phases:
        hint = did_you_mean(name, phases) or f"; programs: {', '.join(phases)}"
        raise UsageError(f"{directory} has no program {name!r}{hint}")
    return open_image(directory / (HEAD if phases[name] == "head" else DECODER)).program(name)


def program_object(program: Program, chiplet: int | None) -> dict[str, Any]:
    """The program as JSON types, the commands of one chiplet or of all."""
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(program)
    value["commands"] = [
        {"number": number, "chiplet": queue.chiplet, "engine": queue.engine, **builtin}
        for number, (command, builtin) in enumerate(
            zip(program.commands, value["commands"], strict=True)
        )
        if (queue := program.queues[command.queue]).chiplet == chiplet or chiplet is None
    ]
    return value
