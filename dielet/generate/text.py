"""The tokenizer and chat template of a model directory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dielet.errors import DamagedFile, UsageError
from dielet.generate.stream import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    is_byte_level,
)
from dielet.generate.template import ChatTemplate, Message

TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
MODEL_CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None


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
    def load(cls, directory: Path) -> Text:
        """Read tokenizer.json and chat_template.jinja of `directory`; either may be missing.

        Raises DamagedFile naming the file.
        """
        import tokenizers

        path = directory / TOKENIZER
        if not path.exists():
            return NoText()
        data = _read(path)
        try:
            decoder = msgspec.json.decode(data, type=_TokenizerFile).decoder
            tokenizer = tokenizers.Tokenizer.from_buffer(data)
        # The tokenizers library raises bare Exception for every fault of the file.
        except Exception as error:
            what = " ".join(str(error).split())
            raise DamagedFile(
                f"{path}: not a usable tokenizer: {what}; compile the model again"
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        text = cls(tokenizer, decoder, _load_template(directory, tokenizer))
        del data
        _give_back_freed_memory()
        return text

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of `text`; `special` adds what the tokenizer puts around a whole text (BOS)."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the prompt has half a character (surrogate) at position {error.start}; "
                "give valid Unicode text"
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens` at once, special tokens left out."""
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


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from `path`; {} when there is no such file."""
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(_read(path), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise DamagedFile(f"{path}: not a JSON object: {error}") from None


def _give_back_freed_memory() -> None:
    """Return freed heap to the system: reading a large vocabulary leaves some 50 MB of it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return  # not glibc
    trim(0)


def _load_template(directory: Path, tokenizer: Any) -> ChatTemplate | None:
    path = directory / TEMPLATE
    if not path.exists():
        return None
    try:
        text = _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    return ChatTemplate(text, str(path), _special_strings(directory, tokenizer))


def _special_strings(directory: Path, tokenizer: Any) -> dict[str, str]:
    """`bos_token` and the like, as templates know them, from the ids in config.json."""
    config = read_json(directory / MODEL_CONFIG)
    strings = {}
    for role in ("bos", "eos", "pad"):
        token = config.get(f"{role}_token_id")
        if isinstance(token, list):
            token = token[0] if token else None
        name = tokenizer.id_to_token(token) if isinstance(token, int) and token >= 0 else None
        if name is not None:
            strings[f"{role}_token"] = name
    return strings


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error.strerror}") from None
