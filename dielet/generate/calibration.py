"""The text that `--calibrate` names, as tokens of the model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dielet.checkpoint.base import Checkpoint
from dielet.errors import DamagedFile, MissingFile, UsageError
from dielet.files import require_file
from dielet.generate.text import Text

if TYPE_CHECKING:
    from dielet.calibrate import Stretches

_MOST_BYTES = 1 << 16  # more of a text chooses no better, and takes longer


def read_calibration(checkpoint: Checkpoint, path: Path) -> Stretches:
    """The first 64 kB of `path` in tokens, cut into stretches.

    Raises MissingFile, DamagedFile for what is no UTF-8, UsageError for a text that is too short.
    """
    from dielet.calibrate import LEAST_TOKENS, Stretches, stretch_length

    data = _read(path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(
            f"{path}: not UTF-8 text: {error.reason} at byte {error.start}; "
            "calibrate with a text file"
        ) from None
    tokenizer = Text.of(checkpoint.tokenizer_files(), f"{checkpoint.source}: ")
    tokens = tokenizer.encode(text, special=False)
    if len(tokens) < LEAST_TOKENS:
        raise UsageError(
            f"{path} has {len(tokens)} tokens, too few to calibrate with: at least "
            f"{LEAST_TOKENS}, better some thousand, of text like what the model will read"
        )
    whole = tokenizer.encode(text, special=True)
    lead = whole[: len(whole) - len(tokens)]
    if [*lead, *tokens] != whole:  # something stands behind it too
        lead = whole[: whole.index(tokens[0])] if tokens[0] in whole else []
    length = stretch_length(checkpoint.spec.max_position)
    return Stretches.of(data, tokens, lead[: length // 2], length)


def calibration_hash(path: Path) -> str:
    """sha256 of what is read of a calibration text; MissingFile when it cannot be."""
    return hashlib.sha256(_read(path)).hexdigest()


def _read(path: Path) -> bytes:
    """Up to 64 kB, in whole characters."""
    require_file(path, "a text file")
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MissingFile(
            f"{path} cannot be read: {error.strerror or error}; calibrate with a text file"
        ) from None
    if len(data) <= _MOST_BYTES:
        return data
    end = _MOST_BYTES
    while end > _MOST_BYTES - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end]
