"""tokenizer.json from the metadata of a GGUF file: byte-level BPE (the "gpt2" tokenizer model),
and sentencepiece through `gguf_sentencepiece.py`.

GGUF names how text is cut before merging with a word, `tokenizer.ggml.pre`; each word that is
known here stands for the regular expressions of the tokenizer it was made from.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from dielet.checkpoint.config import Entries
from dielet.checkpoint.gguf_sentencepiece import sentencepiece_parts
from dielet.checkpoint.names import shown
from dielet.errors import DamagedFile, Unsupported

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UNUSED, _CONTROL, _USER_DEFINED = 5, 3, 4  # token types, of which 1 is a normal token
_TOKEN_TYPES = range(0, 7)

# Texts that end a message or a document, in the families that name only one of them.
_ENDINGS = (
    "<|endoftext|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
)


@dataclass(frozen=True)
class _Pre:
    """How one kind of tokenizer cuts text: by each expression in turn."""

    splits: tuple[str, ...]
    nfc: bool = False  # normalises its input
    whole_words: bool = False  # takes a piece that is a token as it is, without merging
    bos: bool = False  # begins a text with the BOS token unless the file says otherwise


_PRE = {
    "gpt-2": _Pre((_GPT2,)),
    "smollm": _Pre((r"\p{N}", _GPT2)),
    "qwen2": _Pre((_NEWER % "",), nfc=True),
    "llama-bpe": _Pre((_NEWER % "{1,3}",), whole_words=True, bos=True),
    "default": _Pre((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}
_SENTENCEPIECE = _Pre((), bos=True)
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}


def tokenizer_json(metadata: Entries) -> bytes:
    """The tokenizer that the metadata describes.  Raises Unsupported, DamagedFile."""
    model = metadata.get("tokenizer.ggml.model", str)
    if model not in ("gpt2", "llama"):
        raise Unsupported(
            f"{metadata.where}: tokenizer model {shown(model)!r} is not supported; "
            "supported: gpt2 (byte-level BPE), llama (sentencepiece)"
        )
    pre = _pre(metadata) if model == "gpt2" else _SENTENCEPIECE
    tokens, types = _tokens(metadata)
    # a control token may share its text with an unused one, never with another that is in use
    vocab = {text: i for i, text in enumerate(tokens) if types[i] != _UNUSED}
    if len(vocab) != len(tokens) - types.count(_UNUSED):
        twice = next(t for t, n in Counter(tokens).items() if n > 1)
        raise DamagedFile(
            f"{metadata.where}: token {shown(twice)!r} occurs twice in the vocabulary"
        )
    parts = (
        _byte_level_parts(metadata, pre, vocab)
        if model == "gpt2"
        else sentencepiece_parts(metadata, tokens, types, vocab)
    )
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(i, text, special=types[i] == _CONTROL)
            for i, text in enumerate(tokens)
            if types[i] in (_CONTROL, _USER_DEFINED)
        ],
        "post_processor": _post_processor(metadata, tokens, pre),
        **parts,
    }
    text = json.dumps(document, ensure_ascii=False)
    _check_loads(text, metadata.where)
    return text.encode()


def _pre(metadata: Entries) -> _Pre:
    name = metadata.get("tokenizer.ggml.pre", str, "default")
    pre = _PRE.get(_ALIASES.get(name, name))
    if pre is None:
        raise Unsupported(
            f"{metadata.where}: tokenizer.ggml.pre {shown(name)!r} is not supported; "
            f"supported: {', '.join((*_PRE, *_ALIASES))}"
        )
    return pre


def _byte_level_parts(metadata: Entries, pre: _Pre, vocab: dict[str, int]) -> dict[str, Any]:
    """How text is cut, merged and put together again, for byte-level BPE."""
    space = metadata.get("tokenizer.ggml.add_space_prefix", bool, False)
    return {
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [*map(_split, pre.splits), _byte_level(space)],
        },
        "decoder": _byte_level(space),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.whole_words,
            "vocab": vocab,
            "merges": _merges(metadata, vocab),
        },
    }


def end_of_text_ids(metadata: Entries) -> tuple[int, ...]:
    """Ids that end a text: those that the metadata names, then control tokens known to."""
    ids: list[int] = []
    for key in ("eos_token_id", "eot_token_id", "eom_token_id"):
        ids += metadata.tokens(f"tokenizer.ggml.{key}")
    if "tokenizer.ggml.tokens" in metadata.values:
        tokens, types = _tokens(metadata)
        ids += [i for i, t in enumerate(tokens) if t in _ENDINGS and types[i] == _CONTROL]
    return tuple(dict.fromkeys(ids))


def _tokens(metadata: Entries) -> tuple[list[str], list[int]]:
    """Every token's text and type, by id."""
    tokens = metadata.get("tokenizer.ggml.tokens", list)
    types = metadata.get("tokenizer.ggml.token_type", list, [1] * len(tokens))
    if not tokens or not all(isinstance(t, str) for t in tokens):
        raise DamagedFile(f"{metadata.where}: tokenizer.ggml.tokens is not a list of texts")
    if len(types) != len(tokens) or not all(type(t) is int and t in _TOKEN_TYPES for t in types):
        raise DamagedFile(
            f"{metadata.where}: tokenizer.ggml.token_type must be {len(tokens)} numbers from 0 to 6"
        )
    return tokens, types


def _merges(metadata: Entries, vocab: dict[str, int]) -> list[list[str]]:
    merges = []
    for i, line in enumerate(metadata.get("tokenizer.ggml.merges", list)):
        pair = line.split(" ") if isinstance(line, str) else []
        if len(pair) != 2 or not all(part in vocab for part in (*pair, "".join(pair))):
            raise DamagedFile(
                f"{metadata.where}: tokenizer.ggml.merges[{i}], {shown(line)!r}, is not two "
                "tokens whose union is a token"
            )
        merges.append(pair)
    return merges


def _post_processor(metadata: Entries, tokens: list[str], pre: _Pre) -> dict[str, Any] | None:
    """What is put around an encoded text: its BOS and EOS tokens, where the file asks for them."""
    plain = {**_byte_level(False), "trim_offsets": False} if pre is not _SENTENCEPIECE else None
    before = metadata.get("tokenizer.ggml.add_bos_token", bool, pre.bos)
    after = metadata.get("tokenizer.ggml.add_eos_token", bool, False)
    around = [
        _special_id(metadata, f"tokenizer.ggml.{role}_token_id", len(tokens)) if wanted else None
        for role, wanted in (("bos", before), ("eos", after))
    ]
    if around == [None, None]:
        return plain

    def sequence(letter: str, type_id: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": letter, "type_id": type_id}}]
        for place, i in zip((0, 2), around, strict=True):
            if i is not None:
                parts.insert(place, {"SpecialToken": {"id": tokens[i], "type_id": type_id}})
        return parts

    used = {tokens[i]: i for i in around if i is not None}
    template = {
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": [*sequence("A", 0), *sequence("B", 1)],
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in used.items()},
    }
    return {"type": "Sequence", "processors": [plain, template]} if plain else template


def _special_id(metadata: Entries, key: str, vocab: int) -> int | None:
    ids = metadata.tokens(key)
    if ids and ids[0] >= vocab:
        raise DamagedFile(f"{metadata.where}: {key} is {ids[0]}, but there are {vocab} tokens")
    return ids[0] if ids else None


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _byte_level(space: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": space,
        "trim_offsets": True,
        "use_regex": False,
    }


def _added_token(i: int, text: str, special: bool) -> dict[str, Any]:
    return {
        "id": i,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _check_loads(text: str, where: str) -> None:
    from tokenizers import Tokenizer  # slow to import, and needed only here

    try:
        Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise DamagedFile(f"{where}: the tokenizer does not load ({error})") from error
