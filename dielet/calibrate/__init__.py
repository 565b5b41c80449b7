"""Choose int4 scales by a text, and measure what the choice is worth."""

from dielet.calibrate.calibrate import (
    LEAST_TOKENS,
    Note,
    Stretches,
    calibrate,
    choose_int8,
    read,
    stretch_length,
)

__all__ = [
    "LEAST_TOKENS",
    "Note",
    "Stretches",
    "calibrate",
    "choose_int8",
    "read",
    "stretch_length",
]
