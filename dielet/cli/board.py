"""`prog_llm_qwen3 -d DIR -p "who are you"`: the vendor's board program, on this machine.

Prints nothing but the answer, thinking included, as the program on the board does; what cut the
answer short goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dielet.cli.console import Console
from dielet.cli.exits import INTERRUPTED, finish
from dielet.cli.parser import Parser, place

if TYPE_CHECKING:
    from dielet.generate.answer import Stream

PROGRAM = "prog_llm_qwen3"
MARKS = ("<think>", "</think>")  # the board's tokenizer has no text for these tokens


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code."""
    console = Console()
    words = sys.argv[1:] if argv is None else list(argv)

    def run() -> int:
        parser = make_parser()
        args, extra = parser.parse_known_args(words)
        if extra:
            parser.refuse(extra)
        return answer(args, console)

    return finish(PROGRAM, console, run, debug="--debug" in words)


def make_parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Stream the answer of a compiled model.  It ends where the model ends it, or "
        "with the model's context, and is sampled as the model's generation_config.json says.",
    )
    parser.add_argument(
        "-d", dest="model_dir", type=place, required=True, metavar="DIR", help="the model"
    )
    parser.add_argument(
        "-p", dest="prompt", default="who are you", metavar="TEXT",
        help="the prompt; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N",
        help="end after so many tokens; default: where the context does",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="N",
        help="the same seed samples the same answer; default: a fresh one each time",
    )  # fmt: skip
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def answer(args: argparse.Namespace, console: Console) -> int:
    from dielet.cli.speak import stopping
    from dielet.generate.session import load

    options = {"max_new_tokens": args.max_new_tokens, "seed": args.seed}
    with (
        load(args.model_dir) as model,
        model.stream(args.prompt, **options) as stream,
        stopping(stream),
    ):
        for piece in without_marks(stream):
            console.out(piece, end="")
        console.out()
        most = model.max_seq_len
    result = stream.result
    if result.finish_reason == "length" and len(result.tokens) != args.max_new_tokens:
        console.note(
            f"{PROGRAM}: the answer is cut off: its context of {most} tokens is full; compile with "
            "a larger --max-seq-len, or end it earlier by --max-new-tokens"
        )
    return INTERRUPTED if result.finish_reason == "cancelled" else 0


def without_marks(stream: Stream) -> Iterator[str]:
    """The pieces without the marks of thinking, nor the empty line that the first leaves."""
    begun = False
    for piece in stream:
        for mark in MARKS:
            piece = piece.replace(mark, "")  # a mark is one token, so it is never divided
        if not begun:
            piece = piece.lstrip("\n")
        begun = begun or bool(piece)
        if piece:
            yield piece
