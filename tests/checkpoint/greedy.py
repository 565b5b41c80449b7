"""Greedy tokens of a compiled model against transformers, as tests/numbers measures them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dielet.host import load_runtime
from dielet.image import CompileOptions, compile_model, open_directory
from tests.numbers import measure, oracle

PROMPT = np.random.default_rng(3).integers(0, 331, 40).astype(np.int32)
NEW = 60


def check(source: Path, out: Path, model: Any, **options: Any) -> None:
    """The 60 tokens after a prompt are transformers', but for candidates too close to call."""
    compile_model(source, out, CompileOptions(max_seq_len=128, prefill_chunk=32, **options))
    with closing(load_runtime(out, threads=2)) as runtime:
        answer = measure.answer(runtime, PROMPT, NEW)
    read = np.concatenate([PROMPT, answer[:-1]])
    theirs = oracle.all_logits(model, read)[-NEW:]
    spread = theirs.max(1) - theirs.min(1)
    found = measure.differences(theirs, answer)
    assert not [d for d in found if d.gap > 0.02 * spread[d.position]]
    same = found[0].position if found else NEW
    assert same > 0
    np.testing.assert_array_equal(answer[:same], oracle.generate(model, PROMPT, same))


def shares(folder: Path) -> list[bytes]:
    """The packed weights of a compiled model's decoder, share by share."""
    files = open_directory(folder)
    memory = files.spaces()["weights"]
    return [memory[s.offset : s.offset + s.nbytes].tobytes() for s in files.decoder.table.shares]
