"""Attention masks and positions: which columns of a batch are text, and which are padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dielet.compat.rows import Rows
from dielet.errors import UsageError


def check_mask(mask: torch.Tensor, ids: torch.Tensor, cache: object) -> None:
    """Refuse a mask that is neither of the new columns nor of those in the cache too."""
    past = cache.columns if isinstance(cache, Rows) else 0
    rows, columns = ids.shape
    if tuple(mask.shape) not in ((rows, columns), (rows, past + columns)):
        cached = f" after {past} columns in the cache" if past else ""
        raise UsageError(
            f"attention_mask is {tuple(mask.shape)} for input_ids of {tuple(ids.shape)}{cached}; "
            "it needs a row and a column for each of them"
        )


def check_positions(
    name: str, given: Any, real: np.ndarray, pasts: list[int], columns: int | None = None
) -> None:
    """UsageError unless positions are what they are in any case; None is.

    real: bool [rows, new columns].  pasts: tokens that each row has before them.  columns: those
    before them, if counting columns is right as well.
    """
    if given is None:
        return
    found = np.asarray(torch.as_tensor(given).cpu())
    wanted = np.cumsum(real, axis=1) - 1 + np.asarray(pasts)[:, None]
    fits = found.shape in (real.shape[1:], (1, real.shape[1]), real.shape)
    if fits and (found == wanted)[real].all():
        return
    if fits and columns is not None and (found == np.arange(real.shape[1]) + columns).all():
        return
    raise UsageError(
        f"{name} of shape {tuple(found.shape)} are not those of the text (0, 1, 2, ... for each "
        "row's tokens, padding left out), and others are not possible here; leave them out"
    )


def placed(found: list[np.ndarray], real: np.ndarray) -> np.ndarray:
    """Logits of each row's last real tokens, put where those are: f32 [rows, columns, vocab]."""
    if real.all():
        return np.stack(found)
    whole = np.zeros((*real.shape, found[0].shape[-1]), np.float32)
    for row, logits, here in zip(whole, found, real, strict=True):
        count = int(here.sum())
        row[here] = logits[len(logits) - count :]
    return whole
