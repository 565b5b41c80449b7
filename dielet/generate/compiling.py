"""Compile a checkpoint once it is known that the answers will find what they need in it."""

from __future__ import annotations

import os
from pathlib import Path

from dielet.checkpoint.base import Checkpoint
from dielet.generate.session import usable
from dielet.image import CompileOptions, Progress, compile_checkpoint


def compile_usable(
    checkpoint: Checkpoint,
    out: str | Path,
    options: CompileOptions,
    progress: Progress | None = None,
) -> Path:
    """`compile_checkpoint`, which raises DamagedFile first for a tokenizer, chat template or
    generation_config.json that `load` would refuse.

    Where `out` is a link, what it leads to is written, and the link stays.
    """
    check_text(checkpoint)
    target = os.path.realpath(out) if os.path.islink(out) else out
    return compile_checkpoint(checkpoint, target, options, progress)


def check_text(checkpoint: Checkpoint) -> None:
    """DamagedFile for a file of the checkpoint that generation cannot use, the weights apart."""
    usable(checkpoint.tokenizer_files(), f"{checkpoint.source}: ")
