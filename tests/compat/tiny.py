"""What the tests of this folder compare: a tokenizer of words, two models with the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCAB = 331
PAD, EOS = 0, 1
# Families have defaults of their own, some beyond this vocabulary.
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Pair:
    source: Path
    theirs: Any
    ours: Any


def words() -> PreTrainedTokenizerFast:
    """`w2 w3 ...`: every token a word, padding on the left."""
    vocab = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def bytewise() -> PreTrainedTokenizerFast:
    """A token per byte from id 2 on, and words after those: any text can be told apart in it."""
    vocab = {"<pad>": PAD, "<eos>": EOS}
    for piece in (
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(f"w{i}" for i in range(258, VOCAB)),
    ):
        vocab[piece] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def prompts(rows: int, longest: int, seed: int = 5) -> dict[str, torch.Tensor]:
    """Rows of different lengths, padded on the left: input_ids and attention_mask."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCAB, (rows, longest), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : row * longest // (rows + 1)] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
