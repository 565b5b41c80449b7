"""Attention masks and positions that scripts give beside the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dielet.compat.transformers import DieletForCausalLM
from dielet.errors import UsageError
from tests.compat.test_transformers import GREEDY
from tests.compat.tiny import EOS, PAD, prompts


def test_positions_that_follow_from_the_mask(pairs) -> None:
    ours = pairs().ours
    inputs = prompts(3, 12)
    usual = ours.generate(**inputs, max_new_tokens=4, **GREEDY).tolist()
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    given = ours.generate(**inputs, position_ids=positions, max_new_tokens=4, **GREEDY)
    assert given.tolist() == usual
    whole = ours(**inputs).logits
    for name, value in (
        ("position_ids", positions), ("cache_position", positions),
        ("cache_position", torch.arange(12)), ("cache_position", torch.arange(12)[None]),
    ):  # fmt: skip
        assert torch.equal(ours(**inputs, **{name: value}).logits, whole)
    past = ours(**inputs).cache
    step = torch.full((3, 1), 7)
    found = ours(step, cache=past, position_ids=mask.sum(1, keepdim=True)).logits
    assert torch.equal(found, ours(step, cache=ours(**inputs).cache).logits)
    for call, name, value in (
        (ours.generate, "position_ids", positions + 1),
        (ours, "position_ids", torch.arange(12)[None]),
        (ours, "cache_position", torch.arange(3)),
    ):
        with pytest.raises(UsageError, match=rf"{name} of shape .* leave them out"):
            call(**inputs, **{name: value})


def test_positions_of_any_kind(pairs) -> None:
    ours = pairs().ours
    inputs = prompts(2, 12)
    alone = {"input_ids": inputs["input_ids"][:1]}
    usual = ours.generate(**alone, max_new_tokens=4, num_return_sequences=1, **GREEDY).tolist()
    for positions in (
        torch.arange(12), torch.arange(12)[None].bfloat16(), np.arange(12), [*range(12)],
    ):  # fmt: skip
        found = ours.generate(**alone, position_ids=positions, max_new_tokens=4, **GREEDY)
        assert found.tolist() == usual
        assert ours(**alone, position_ids=positions).logits.shape[1] == 12
    several = {"do_sample": True, "top_k": 1, "num_return_sequences": 3, "max_new_tokens": 4}
    found = ours.generate(
        **alone, position_ids=torch.arange(12), **several, pad_token_id=PAD, eos_token_id=None
    )
    assert found.tolist() == usual * 3
    for call in (ours.generate, ours):
        for wrong in ("x", {}, [[0, 1], [0]], 5, torch.arange(11), torch.zeros(3, 12)):
            with pytest.raises(UsageError, match=r"position_ids .* leave (it|them) out"):
                call(**inputs, position_ids=wrong)


def test_positions_after_an_inferred_mask(pairs) -> None:
    """Without a mask, transformers takes padding for what it is if `generate` knows the token."""
    ours: DieletForCausalLM = pairs().ours
    inputs = prompts(2, 12)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": EOS}
    usual = ours.generate(**inputs, **options, pad_token_id=PAD)
    found = ours.generate(ids, position_ids=positions, **options, pad_token_id=PAD)
    assert found.tolist() == usual.tolist()
    with pytest.raises(UsageError, match="not those of the text"):
        ours.generate(ids, position_ids=torch.arange(12), **options, pad_token_id=PAD)
    with pytest.raises(UsageError, match="not those of the text"):
        ours.generate(ids, position_ids=positions, **options, pad_token_id=EOS)


def test_positions_of_a_conversation(pairs) -> None:
    ours = pairs().ours
    ids = prompts(1, 24)["input_ids"]
    usual = ours.generate(ids, max_new_tokens=4, **GREEDY)
    for last in (torch.arange(24), torch.arange(24)[None]):
        cache = ours(ids[:, :16]).cache
        found = ours.generate(ids, cache=cache, position_ids=last, max_new_tokens=4, **GREEDY)
        assert found.tolist() == usual.tolist()
    with pytest.raises(UsageError, match="not those of the text"):
        cache = ours(ids[:, :16]).cache
        ours.generate(ids, cache=cache, position_ids=torch.arange(24) + 1, **GREEDY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool, torch.uint8])
def test_masks_of_any_kind(pairs, dtype: torch.dtype) -> None:
    ours = pairs().ours
    inputs = prompts(2, 12)
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    usual = ours.generate(**inputs, max_new_tokens=4, **GREEDY).tolist()
    logits = ours(**inputs).logits
    inputs["attention_mask"] = mask.to(dtype)
    assert ours.generate(**inputs, max_new_tokens=4, **GREEDY).tolist() == usual
    found = ours.generate(**inputs, position_ids=positions, max_new_tokens=4, **GREEDY)
    assert found.tolist() == usual
    assert torch.equal(ours(**inputs).logits, logits)


def test_a_mask_that_is_none(pairs) -> None:
    ours = pairs().ours
    ids = prompts(1, 12)["input_ids"]
    for mask in ([[1] * 12], np.ones((1, 12))):
        for call in (ours.generate, ours):
            with pytest.raises(UsageError, match=r"attention_mask is a \w+; give a tensor"):
                call(ids, attention_mask=mask)
