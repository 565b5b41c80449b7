"""Attention masks and positions: which columns of a batch are text, and which are padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dielet.compat.rows import Rows
from dielet.errors import UsageError


def check_mask(mask: Any, ids: torch.Tensor, cache: object) -> None:
    """Refuse a mask that is neither of the new columns nor of those in the cache too."""
    if not isinstance(mask, torch.Tensor):
        raise UsageError(f"attention_mask is a {type(mask).__name__}; give a tensor")
    past = cache.columns if isinstance(cache, Rows) else 0
    rows, columns = ids.shape
    if tuple(mask.shape) not in ((rows, columns), (rows, past + columns)):
        cached = f" after {past} columns in the cache" if past else ""
        raise UsageError(
            f"attention_mask is {tuple(mask.shape)} for input_ids of {tuple(ids.shape)}{cached}; "
            "it needs a row and a column for each of them"
        )


def positions_of(name: str, given: Any, rows: int, columns: int) -> torch.Tensor:
    """Positions as float64 [rows, columns], which is exact; one row may stand for all."""
    try:
        found = torch.as_tensor(given).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"{name} is {given!r:.80}; give a tensor of whole numbers, or leave it out"
        ) from None
    if tuple(found.shape) not in ((columns,), (1, columns), (rows, columns)):
        raise _not_of_the_text(name, found)
    return found.expand(rows, columns)


def check_positions(
    name: str, given: Any, real: np.ndarray, pasts: list[int], columns: int | None = None
) -> None:
    """UsageError unless positions are what they are in any case; None is.

    real: bool [rows, new columns].  pasts: tokens that each row has before them.  columns: those
    before them, if counting columns is right as well.
    """
    if given is None:
        return
    found = positions_of(name, given, *real.shape)
    wanted = np.cumsum(real, axis=1) - 1 + np.asarray(pasts)[:, None]
    if (found.numpy() == wanted)[real].all():
        return
    if columns is not None and (found.numpy() == np.arange(real.shape[1]) + columns).all():
        return
    raise _not_of_the_text(name, found)


def _not_of_the_text(name: str, found: torch.Tensor) -> UsageError:
    return UsageError(
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
