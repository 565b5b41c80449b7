"""A tiny random model that can talk, compiled for this machine, and what its traces hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from dielet.checkpoint.random import RandomCheckpoint
from dielet.image import compile_checkpoint
from dielet.profiler.names import parse
from tests.generate.fake import TEMPLATE, byte_level_tokenizer
from tests.models import QWEN, options
from tests.profiler.oracle import Trace


def talking(folder: Path, **given: object) -> Path:
    """Compile into `folder`; every token may be followed by any other, none ends an answer."""
    tokenizer = byte_level_tokenizer()
    spec = msgspec.structs.replace(
        QWEN, vocab=tokenizer.get_vocab_size(with_added_tokens=True), eos_ids=()
    )
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }
    return compile_checkpoint(RandomCheckpoint(spec, 7, files), folder, options(**given))


def work(trace: Trace) -> list[str]:
    """What the host did, in order, but for what it does at a program's first use."""
    names = [parse(s.name) for s in trace.slices if s.category == "Host"]
    every = [f"{n.instance}.{n.sequence} {n.layer}" for n in names if n]
    return [line for line in every if not line.endswith(" prepare_program")]


def programs_of(trace: Trace) -> Counter[str]:
    """How often each program ran."""
    return Counter(s.args["program"] for s in trace.slices if s.category == "Device Workload")
