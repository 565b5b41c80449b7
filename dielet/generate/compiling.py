"""Compile a checkpoint once it is known that the answers will find what they need in it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from dielet import __version__, paths
from dielet.checkpoint.base import Checkpoint
from dielet.generate.calibration import calibration_hash, read_calibration
from dielet.generate.session import usable
from dielet.image import CompileOptions, Progress, compile_checkpoint
from dielet.image.appear import beside
from dielet.image.manifest import SCHEMA
from dielet.image.replace import check_replaceable


def compile_usable(
    checkpoint: Checkpoint,
    out: str | Path,
    options: CompileOptions,
    progress: Progress | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Path:
    """`compile_checkpoint`, which raises DamagedFile first for a tokenizer, chat template or
    generation_config.json that `load` would refuse; calibrated if `options` name a text.

    Where `out` is a link, what it leads to is written, and the link stays.  `note` is told what
    a calibration does.
    """
    check_text(checkpoint)
    target = Path(os.path.realpath(out) if os.path.islink(out) else out)
    if options.calibrate is None:
        return compile_checkpoint(checkpoint, target, options, progress)
    from dielet.calibrate import calibrate

    text = read_calibration(checkpoint, Path(options.calibrate))
    check_replaceable(target)
    with beside(target) as folder:
        calibration = calibrate(checkpoint, text, options, folder, note)
    return compile_checkpoint(checkpoint, target, options, progress, calibration)


def check_text(checkpoint: Checkpoint) -> None:
    """DamagedFile for a file of the checkpoint that generation cannot use, the weights apart."""
    usable(checkpoint.tokenizer_files(), f"{checkpoint.source}: ")


def cached_directory(
    checkpoint: Checkpoint, options: CompileOptions, identity: str | None = None
) -> Path:
    """Where the cache keeps this checkpoint compiled with these options by this dielet.

    identity: in place of the checkpoint's own.
    """
    key = f"{identity or checkpoint.identity} {options} {__version__} {SCHEMA}"
    if options.calibrate is not None:
        key += f" {calibration_hash(Path(options.calibrate))}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    name = re.sub(r"[^\w.-]+", "-", checkpoint.spec.name or checkpoint.spec.model_type)
    return paths.cache_dir("models", f"{name[:60]}-{digest}")
