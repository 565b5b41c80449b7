"""Answer one prompt, streamed; without -p, chat.

MODEL is a model directory, or a checkpoint, which is compiled into the user's cache first.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console, table
from dielet.cli.exits import INTERRUPTED
from dielet.cli.models import ANSWER, add_sampling, open_model
from dielet.cli.parser import add_compress, add_revision, at_revision, place
from dielet.cli.speak import answer_object, prompt_parts, receipt_lines, speak
from dielet.errors import DieletError, UsageError
from dielet.generate.context import PREFIX_CACHE_MB

if TYPE_CHECKING:
    from dielet.generate.answer import Result
    from dielet.generate.session import Model
    from dielet.profiler import Session

HELP = "answer a prompt, or chat"
CONTEXT = ("prompt_cache", "context_shift", "keep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", type=place, metavar="MODEL",
        help="model directory, HF directory, hub id, or .gguf",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--model-dir", type=place, metavar="MODEL", help="the same, as an option"
    )
    add_revision(parser)
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; - reads it from stdin")
    parser.add_argument("--threads", type=int, metavar="N", help="workers; default: one per core")
    parser.add_argument(
        "--profile", nargs="?", const=".", type=place, metavar="DIR",
        help="leave a trace of every command in DIR; default: here",
    )  # fmt: skip
    add_compress(parser)
    add_sampling(parser)
    add_context(parser)


def add_context(parser: argparse.ArgumentParser) -> None:
    """What is kept of earlier text, and what becomes of it when there is too much."""
    group = parser.add_argument_group("the context")
    group.add_argument(
        "--prompt-cache", type=place, metavar="FILE",
        help="keep what the prompt computes in FILE, and compute only what is not in it",
    )  # fmt: skip
    group.add_argument(
        "--prefix-cache-mb", type=int, metavar="N",
        help=f"memory for what a chat computed before /reset; default: {PREFIX_CACHE_MB}",
    )  # fmt: skip
    group.add_argument(
        "--context-shift", action="store_const", const=True,
        help="when the context is full, drop its oldest half and go on instead of ending",
    )  # fmt: skip
    group.add_argument(
        "--keep", type=int, metavar="N",
        help="tokens at the beginning that are never dropped; default: the system message, or 4",
    )  # fmt: skip


def run(args: argparse.Namespace, console: Console) -> int:
    if (args.model is None) == (args.model_dir is None):
        took = args.model is None and args.profile not in (None, ".")
        hint = f"; --profile took {args.profile} for its directory" if took else ""
        raise UsageError(f"give one model: dielet run MODEL, or dielet run -d MODEL{hint}")
    if args.prompt is None and console.as_json:
        raise UsageError("--json answers one prompt; give it with -p (-p - reads stdin)")
    options: dict[str, Any] = {
        name: value for name in (*ANSWER, *CONTEXT) if (value := getattr(args, name)) is not None
    }
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    memory = args.prefix_cache_mb
    if memory is None:
        memory = PREFIX_CACHE_MB if prompt is None else 0  # after one answer there is no other
    src = at_revision(args.model or args.model_dir, args.revision)
    with warnings_noted(console):
        model = open_model(src, console, args.threads, prefix_cache_mb=memory)
    with warnings_noted(console), model:
        with profiled(args.profile, args.compress, console) as session:
            if prompt is None:
                return chat(model, options, console)
            stream = model.stream(prompt, **options)
            warn_of_no_effect(model, options, console)
            result = speak(stream, console)
        return report(result, session, console)


@contextmanager
def warnings_noted(console: Console) -> Iterator[None]:
    """Inside, what Python would warn of with a file and a line of ours is a note."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *where, **more: console.note(str(message))
        yield


@contextmanager
def profiled(
    folder: str | None, compress: bool | None, console: Console
) -> Iterator[Session | None]:
    """Profile the block into `folder`, if there is one, and say where the trace is."""
    if folder is None:
        yield None
        return
    from dielet.profiler import Session

    session = Session(folder, compress=compress)
    try:
        with session:
            yield session
    finally:
        if session.files:
            console.note(f"\nprofile: {session.files[0]} (open it at https://ui.perfetto.dev)")
            console.detail(str(session.summary()))


def report(result: Result, session: Session | None, console: Console) -> int:
    """The receipt of an answer; with --json, the object.  The exit code."""
    if console.as_json:
        files = {} if session is None else {"profile": [str(path) for path in session.files]}
        console.result(answer_object(result) | files)
    elif console.verbosity >= 0:
        console.note("\n" + table(receipt_lines(result.receipt)))
    return INTERRUPTED if result.finish_reason == "cancelled" else 0


def chat(model: Model, options: dict[str, Any], console: Console) -> int:
    """Read messages from stdin and answer each, until it ends."""
    from dielet.generate.chat import Chat

    if options.get("raw"):
        raise UsageError("--raw continues one prompt; give it with -p")
    conversation = Chat(model, **options)
    warn_of_no_effect(model, options, console)
    interactive = sys.stdin.isatty()
    if interactive:
        enable_line_editing()
        console.note(
            f"{model.spec.name or model.directory}: type a message; /reset begins anew, "
            "/exit or Ctrl-D ends, Ctrl-C stops an answer"
        )
    while (message := read_message(interactive)) is not None:
        if message == "/reset":
            conversation.reset()
        elif message in ("/exit", "/quit"):
            return 0
        elif message:
            take_turn(conversation, message, interactive, console)
    return 0


def take_turn(conversation: Any, message: str, interactive: bool, console: Console) -> None:
    try:
        result = speak(conversation.ask(message), console)
    except DieletError as error:
        if not interactive:
            raise
        console.error(f"{error}; /reset begins anew")
        return
    if result.finish_reason == "cancelled" and not interactive:
        raise KeyboardInterrupt
    receipt = result.receipt
    if receipt.decode_tok_s is not None:
        console.detail(
            f"{len(result.tokens)} tokens, {receipt.decode_tok_s:.1f} tokens/s, prompt "
            + prompt_parts(receipt)
        )
    console.out()


def read_message(interactive: bool) -> str | None:
    """The next message, without the white space around it; None at the end."""
    try:
        return input("> " if interactive else "").strip()
    except EOFError:
        return None


def enable_line_editing() -> None:
    """Arrow keys and history, where Python has them."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return


def warn_of_no_effect(model: Model, options: dict[str, Any], console: Console) -> None:
    """Say so when options only matter to sampling, and the answer will be greedy."""
    if options.get("temperature", model.sampling.temperature) > 0:
        return
    idle = [n for n in ("top_k", "top_p", "min_p", "seed") if options.get(n) is not None]
    if idle:
        names = ", ".join("--" + name.replace("_", "-") for name in idle)
        console.note(f"{names}: no effect on a greedy answer; give a --temperature above 0")
