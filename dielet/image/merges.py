"""A tokenizer.json that takes less memory to read: the same tokenizer with shorter merges.

The `tokenizers` library takes a merge as `["a", "b"]` or, older, as `"a b"`. After pairs its JSON
reader leaves holes between the vocabulary's pieces that are too small to be given back: for Qwen3's
151,387 merges 7 MB more, for as long as a model is loaded.
"""

from __future__ import annotations

import msgspec

from dielet.files import UNDECODABLE

_COMMENT = "#version"  # as a text such a merge would be left out, like the first line of merges.txt


def with_short_merges(data: bytes) -> bytes:
    """The tokenizer.json `data` with its merges as texts, and without white space between values.

    Everything else stays as it was written, and so does the whole of a file that is not BPE with
    pairs, or one of whose pairs would be read otherwise as a text.
    """
    try:
        file = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        model = msgspec.json.decode(file["model"], type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(model["type"])
        pairs = msgspec.json.decode(model["merges"], type=list[tuple[str, str]])
        # A key that is there twice, or is written with escapes, would not come back.
        same = _written(file, model) == msgspec.json.format(data, indent=-1)
    except (*UNDECODABLE, KeyError):
        return data
    if kind != "BPE" or not same or not all(_is_plain(a, b) for a, b in pairs):
        return data
    merges = msgspec.Raw(msgspec.json.encode([f"{a} {b}" for a, b in pairs]))
    return _written(file, {**model, "merges": merges})


def _written(file: dict[str, msgspec.Raw], model: dict[str, msgspec.Raw]) -> bytes:
    whole = msgspec.json.encode({**file, "model": model})
    return msgspec.json.format(whole, indent=-1)


def _is_plain(a: str, b: str) -> bool:
    return bool(a and b) and " " not in a + b and not a.startswith(_COMMENT)
