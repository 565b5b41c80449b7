"""Run the command line, in a process of its own, on a model that says é without end, slowly.

Usage: slow_model.py DIR run|board [options].  Writes "answering" to stderr at the first token.
"""

import sys
import time
from pathlib import Path

import dielet.host
from dielet.cli import board, main
from tests.generate.fake import FakeRuntime, byte_level_tokenizer, write_text_files


def slowly(state):
    if state.past == 0 and "--json" in sys.argv:
        print("answering", file=sys.stderr, flush=True)
    time.sleep(0.01)


def load_runtime(directory, threads=None, profiler=None):
    script = TOKENIZER.encode("é" * 2000, add_special_tokens=False).ids
    return FakeRuntime(410, max_seq_len=4096, chunk=64, script=script, before_forward=slowly)


TOKENIZER = byte_level_tokenizer()
directory, program, *options = sys.argv[1:]
write_text_files(Path(directory), TOKENIZER)
dielet.host.load_runtime = load_runtime
if program == "board":
    sys.exit(board.main(["-d", directory, "-p", "hi"]))
sys.exit(main.main(["run", directory, "-p", "hi", *options]))
