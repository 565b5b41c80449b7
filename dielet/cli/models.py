"""From what a user names to a loaded model: compiled before, or compiled now into the cache."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dielet.cli.console import Console, Report, duration
from dielet.errors import DamagedFile, DieletError, MissingFile, UsageError

if TYPE_CHECKING:
    from dielet.checkpoint.base import Checkpoint
    from dielet.generate.session import Model
    from dielet.image import CompileOptions


def open_model(
    src: str | Path,
    console: Console,
    threads: int | None = None,
    options: CompileOptions | None = None,
    prefix_cache_mb: int = 0,
) -> Model:
    """Load the model directory `src`; anything else is compiled into the user's cache first."""
    from dielet.generate.session import MANIFEST, is_model_directory, load
    from dielet.image.names import DECODER

    if is_model_directory(Path(src)):
        return load(src, threads, prefix_cache_mb=prefix_cache_mb)
    if (Path(src) / DECODER).is_file():
        raise MissingFile(
            f"{src} has {DECODER} but no {MANIFEST}, so it is not all of a compiled model; compile "
            "it again"
        )
    from dielet.generate.compiling import cached_directory
    from dielet.image import CompileOptions, open_source

    options = options or CompileOptions()
    checkpoint = open_source(src, options)
    directory = cached_directory(checkpoint, options)
    if is_model_directory(directory):
        console.detail(f"compiled before: {directory}")
        try:
            return load(directory, threads, prefix_cache_mb=prefix_cache_mb)
        except (DamagedFile, MissingFile) as error:
            console.note(f"the compiled model in the cache is not usable ({error}); making it anew")
    make_way(directory, console)
    compile_into(checkpoint, directory, options, console)
    return load(directory, threads, prefix_cache_mb=prefix_cache_mb)


def make_way(directory: Path, console: Console) -> None:
    """See to it that the cache can be written and that nothing but a model has this name there.

    Raises DieletError saying how to choose another cache.
    """
    from dielet.image.replace import check_replaceable

    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory.parent):
            pass
        try:
            check_replaceable(directory)
            ours = directory.exists() or not directory.is_symlink()
        except UsageError:
            ours = False
        if not ours:
            console.note(f"{directory} in the cache is no compiled model; making it anew")
            if directory.is_dir() and not directory.is_symlink():
                shutil.rmtree(directory)
            else:
                directory.unlink()
    except OSError as error:
        raise DieletError(
            f"cannot write to the cache {directory.parent}: {error.strerror or error}; set "
            "XDG_CACHE_HOME to a directory that can be written, or run: dielet compile SRC -o DIR"
        ) from error


def compile_into(
    checkpoint: Checkpoint, directory: Path, options: CompileOptions, console: Console
) -> float:
    """Compile with a progress bar; returns the seconds it took."""
    from time import perf_counter

    from dielet.generate.compiling import compile_usable

    begin = perf_counter()
    shown: list[Report] = []
    with ExitStack() as stack:

        def report(done: int, total: int, name: str) -> None:
            if not shown:  # only now has everything been checked that may be refused
                console.note(f"compiling {checkpoint.source} into {directory}")
                shown.append(stack.enter_context(console.progress("compile")))
            shown[0](done, total, name)

        compile_usable(checkpoint, directory, options, report, console.note)
    seconds = perf_counter() - begin
    console.note(f"compiled in {duration(seconds)}")
    return seconds


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options of an answer."""
    group = parser.add_argument_group(
        "the answer", "what is not given comes from the model's generation_config.json"
    )
    group.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="default: until the context is full"
    )
    group.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    group.add_argument("--top-k", type=int, metavar="K", help="only the K best tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="only the likeliest, P in all")
    group.add_argument("--min-p", type=float, metavar="P", help="at least P of the likeliest")
    group.add_argument("--repetition-penalty", type=float, metavar="X", help="1 is none")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed, the same text")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be repeated"
    )
    group.add_argument("--system", metavar="TEXT", help="the system message")
    group.add_argument(
        "--no-thinking", dest="thinking", action="store_const", const=False,
        help="answer without thinking first",
    )  # fmt: skip
    group.add_argument(
        "--speculate", type=int, metavar="N",
        help="guess N tokens from what the text repeats; same answer, sooner. Default: 0",
    )  # fmt: skip
    group.add_argument(
        "--raw", action="store_const", const=True, help="continue the prompt, no chat template"
    )


ANSWER = (
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "system",
    "thinking",
    "raw",
    "speculate",
)
