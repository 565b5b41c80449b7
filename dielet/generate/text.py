"""The tokenizer and chat template of a model directory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dielet.checkpoint.filemap import read_small
from dielet.checkpoint.special_tokens import special_tokens
from dielet.errors import DamagedFile, UsageError
from dielet.files import UNDECODABLE
from dielet.generate.amplify import amplification
from dielet.generate.panics import panics_caught
from dielet.generate.stream import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    is_byte_level,
)
from dielet.generate.template import ChatTemplate, Message, check_unicode
from dielet.image.names import MODEL_CONFIG, TOKENIZER

TEMPLATE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
_UNUSABLE = f"{TOKENIZER}: not a usable tokenizer"
# What generation reads, if it is there.
FILES = (TOKENIZER, TEMPLATE, MODEL_CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG)


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None
    normalizer: Any = None
    post_processor: Any = None


class Text:
    """Text to ids and back.  Safe to use from several threads."""

    def __init__(
        self, tokenizer: Any, decoder: dict[str, Any] | None, template: ChatTemplate | None
    ) -> None:
        self._tokenizer = tokenizer
        self._byte_level = is_byte_level(decoder)
        self._known: dict[int, bytes] = {}
        self._skipped = frozenset(
            token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special
        )
        self.template = template

    @classmethod
    def of(cls, files: Mapping[str, bytes], where: str) -> Text:
        """From the content of tokenizer.json and chat_template.jinja; either may be missing.

        Raises DamagedFile naming the file, with `where` before its name.
        """
        import tokenizers

        data = files.get(TOKENIZER)
        if data is None:
            return NoText()
        with panics_caught(f"{where}{_UNUSABLE}", Exception):
            file = msgspec.json.decode(data, type=_TokenizerFile)
            _check_growth(file, where)
            tokenizer = tokenizers.Tokenizer.from_buffer(data)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        text = cls(tokenizer, file.decoder, _template_of(files, where, tokenizer))
        give_back_freed_memory()
        return text

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of `text`; `special` adds what the tokenizer puts around a whole text (BOS)."""
        check_unicode(text, "the prompt")
        with panics_caught(_UNUSABLE):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens` at once, special tokens left out."""
        with panics_caught(_UNUSABLE):
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def detokenizer(self) -> Detokenizer:
        """A fresh incremental decoder, whose pieces join to `decode` of the same ids."""
        if self._byte_level:
            return ByteDetokenizer(self._tokenizer, self._skipped, self._known)
        return WindowDetokenizer(self._tokenizer, self._skipped)

    def chat_prompt(self, messages: Sequence[Message], thinking: bool | None) -> str:
        """Render `messages` with the chat template, ready to be answered.

        `thinking` None leaves the choice to the template (Qwen3 thinks by default).
        """
        if self.template is None:
            raise UsageError(
                "this model has no chat template, so it takes no messages; "
                "give the prompt as plain text, to be continued"
            )
        variables = {} if thinking is None else {"enable_thinking": thinking}
        return self.template.render(messages, **variables)


def _check_growth(file: _TokenizerFile, where: str) -> None:
    what = amplification(file.normalizer, file.decoder, file.post_processor)
    if what:
        raise DamagedFile(f"{where}{TOKENIZER}: {what}; replace it and compile again")


class NoText(Text):
    """Of a model compiled from a bare configuration: ids in, ids out, and no text."""

    def __init__(self) -> None:
        self.template = None

    def encode(self, text: str, special: bool) -> list[int]:
        raise UsageError(
            f"this model has no {TOKENIZER}, so it takes token ids only; "
            "compile it from a directory that has one to use text"
        )

    def decode(self, tokens: Sequence[int]) -> str:
        return ""

    def detokenizer(self) -> Detokenizer:
        return _NoDetokenizer()


class _NoDetokenizer:
    def push(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def read_files(directory: Path) -> dict[str, bytes]:
    """Those of FILES that `directory` has.  MissingFile, DamagedFile where one cannot be read."""
    return {name: read_small(path) for name in FILES if (path := directory / name).exists()}


def json_object(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    """The JSON object that is the content of a file; {} when there is no such file."""
    try:
        return msgspec.json.decode(files.get(name, b"{}"), type=dict[str, Any])
    except UNDECODABLE as error:
        raise DamagedFile(f"{where}{name}: not a JSON object: {error}") from None


def give_back_freed_memory() -> None:
    """Return freed heap to the system: reading a large vocabulary leaves some 50 MB of it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return  # not glibc
    trim(0)


def _template_of(files: Mapping[str, bytes], where: str, tokenizer: Any) -> ChatTemplate | None:
    data = files.get(TEMPLATE)
    if data is None:
        return None
    path = f"{where}{TEMPLATE}"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    by_id = _by_id(json_object(files, MODEL_CONFIG, where), tokenizer)
    said = special_tokens(json_object(files, TOKENIZER_CONFIG, where), where + TOKENIZER_CONFIG)
    special = {name: text for name, text in {**by_id, **said}.items() if text is not None}
    return ChatTemplate(text, path, special)


def _by_id(config: Mapping[str, Any], tokenizer: Any) -> dict[str, str]:
    """`bos_token` and the like from the ids in config.json: for what no other file names."""
    strings = {}
    for role in ("bos", "eos", "pad"):
        token = config.get(f"{role}_token_id")
        if isinstance(token, list):
            token = token[0] if token else None
        if not isinstance(token, int) or not 0 <= token < 1 << 32:
            continue
        name = tokenizer.id_to_token(token)
        if name is not None:
            strings[f"{role}_token"] = name
    return strings
