"""accuracy.json: what a calibration came to, measured against the same model in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np
from numpy.typing import NDArray

from dielet.errors import DamagedFile, MissingFile
from dielet.files import UNDECODABLE
from dielet.image.names import ACCURACY


class LinearAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One linear's outputs beside those in bf16, as the cosine of the two over held-out tokens.

    single: both from what enters it in bf16.  accumulated: ours from what enters it in the
    compiled model, after all layers before it.  Both over at most 256 outputs.
    """

    name: str
    format: str
    nbytes: int
    single: float
    accumulated: float


class Accuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A calibrated model against bf16, teacher-forced over the end of the calibration text, which
    chose nothing.

    same_best_token: share of positions with the same first choice.  mean_kl: of the next token's
    distribution, from bf16 to ours, in nats.  plain_*: the same without calibration.
    """

    text_sha256: str
    tokens: int  # that chose
    held_out_tokens: int  # that measured
    same_best_token: float
    mean_kl: float
    plain_same_best_token: float
    plain_mean_kl: float
    int8_budget: float | None  # percent
    linears: tuple[LinearAccuracy, ...]


@dataclass(frozen=True)
class Calibration:
    """What a calibration text decided: how much each input [K] of a linear matters (its mean
    square), and which linears are kept in int8; and what that came to."""

    importance: Mapping[str, NDArray[np.float32]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    int8: frozenset[str] = frozenset()
    accuracy: Accuracy | None = None


def read_accuracy(directory: Path) -> Accuracy:
    """The report of a calibrated model directory.  MissingFile when it was not calibrated."""
    path = directory / ACCURACY
    if not path.is_file():
        raise MissingFile(
            f"{directory} has no {ACCURACY}: it was compiled without --calibrate FILE, which "
            "measures accuracy"
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=Accuracy)
    except UNDECODABLE as error:
        raise DamagedFile(f"{path}: {error}; compile the model again") from None
