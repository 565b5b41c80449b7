"""tokenizer.json from a GGUF file's scored vocabulary (the "llama" tokenizer model: sentencepiece).

Such a tokenizer joins neighbours into the best scored piece first, which is byte-pair encoding with
one merge for each way to cut a piece in two, in the order of the pieces' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dielet.checkpoint.config import Entries
from dielet.errors import DamagedFile

SPACE = "▁"
NORMAL = 1  # the type of a token that text is cut into
_LONGEST = 1024  # characters of such a token, which is cut in two everywhere; real ones have 48


def sentencepiece_parts(
    metadata: Entries, tokens: Sequence[str], types: Sequence[int], vocab: dict[str, int]
) -> dict[str, Any]:
    """The model, normalizer, decoder and pre-tokenizer of a tokenizer.json.

    `vocab` has the id of every token in use.  Raises DamagedFile.
    """
    scores = metadata.get("tokenizer.ggml.scores", list)
    if len(scores) != len(tokens) or not all(type(s) is float and s == s for s in scores):
        raise DamagedFile(f"{metadata.where}: tokenizer.ggml.scores must be {len(tokens)} numbers")
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", bool, True)
    unknown = metadata.tokens("tokenizer.ggml.unknown_token_id")
    if unknown and unknown[0] >= len(tokens):
        raise DamagedFile(
            f"{metadata.where}: tokenizer.ggml.unknown_token_id is {unknown[0]}, but there are "
            f"{len(tokens)} tokens"
        )
    pieces = [(-score, i) for i, score in enumerate(scores) if types[i] == NORMAL]
    longest = max((len(tokens[i]) for _, i in pieces), default=0)
    if longest > _LONGEST:
        raise DamagedFile(
            f"{metadata.where}: a token of tokenizer.ggml.tokens has {longest} characters; at most "
            f"{_LONGEST} are possible"
        )
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    normalizers = [{"type": "Prepend", "prepend": SPACE}] * prefix + [spaces]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[unknown[0]] if unknown else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [pair for _, i in sorted(pieces) for pair in _cuts(tokens[i], types, vocab)],
        },
    }


def _cuts(piece: str, types: Sequence[int], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """The ways to cut a piece into two that text can be made of, the longest left one first."""
    found = []
    for at in range(len(piece) - 1, 0, -1):
        left, right = piece[:at], piece[at:]
        ids = vocab.get(left), vocab.get(right)
        if all(i is not None and types[i] == NORMAL for i in ids):
            found.append((left, right))
    return found
