"""Open, run and close a model, again and again, and print what the process has before and after.

Usage: cycles.py DIR FILE WARM CYCLES.  Prints JSON after WARM cycles, and after CYCLES more.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path

import dielet


def has() -> dict[str, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "resident": pages * os.sysconf("SC_PAGE_SIZE"),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "mappings": Path("/proc/self/maps").read_text().count("\n"),
    }


results = []


def cycle(folder: str, file: str) -> None:
    with dielet.load(folder, threads=3) as model:
        question = "a question " * 10
        results.append(model.generate(question, max_new_tokens=4, temperature=0, prompt_cache=file))
        chat = dielet.Chat(model, max_new_tokens=3, temperature=0.5)
        for text in ("one", "two"):
            list(chat.ask(text))
        next(model.stream([5] * 40))  # given up
    forgotten = dielet.load(folder, threads=2)
    forgotten.generate([5] * 20, max_new_tokens=2)


folder, file, warm, cycles = sys.argv[1:]
for _ in range(int(warm)):
    cycle(folder, file)
print(json.dumps(has()))
for _ in range(int(cycles)):
    cycle(folder, file)
print(json.dumps(has()))
