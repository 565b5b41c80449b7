"""Text as it comes: tokens to text without ever splitting a character, and stop strings.

A detokeniser takes ids one by one.  What `push` returns is final; `finish` returns the rest.  All
of it joined equals the tokenizer's own decoding of all ids at once, special tokens skipped.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from dielet.errors import UsageError

WINDOW = 16  # tokens that WindowDetokenizer decodes again at most, runs of byte tokens aside
MAX_STOP_STRINGS = 64


class Detokenizer(Protocol):
    def push(self, token: int) -> str: ...
    def finish(self) -> str: ...


class ByteDetokenizer:
    """For byte-level BPE (Qwen, Llama 3, GPT-2): every token is bytes, whatever its neighbours."""

    def __init__(self, tokenizer: Any, skipped: frozenset[int], known: dict[int, bytes]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._known = known  # shared between answers: a token's bytes never change
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if token in self._skipped:
            return ""
        data = self._known.get(token)
        if data is None:
            # Ids past the tokenizer's end (models pad their vocabulary) have no text.
            data = token_bytes(self._tokenizer.id_to_token(token) or "")
            self._known[token] = data
        return self._decoder.decode(data)

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder: decodes the last few tokens again and returns what is new.

    What a decoder does at the very start (a leading space taken off) or between two tokens (a
    space put in) comes out right because the window always keeps one token of context.
    """

    def __init__(self, tokenizer: Any, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that are already out
        self._open = False  # the window ends in byte tokens, whose text may still change

    def push(self, token: int) -> str:
        name = None if token in self._skipped else self._tokenizer.id_to_token(token)
        if name is None:
            return ""
        self._open = is_byte_token(name)
        self._window.append(token)
        if self._open:
            return ""
        piece = self._rest()
        if len(self._window) > WINDOW:
            self._window = [token]
            self._given = len(self._decode())
        return piece

    def finish(self) -> str:
        return self._rest() if self._open else ""

    def _rest(self) -> str:
        text = self._decode()
        piece = text[self._given :]
        self._given = len(text)
        return piece

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._window, skip_special_tokens=True))


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte, reversed: character -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def token_bytes(name: str) -> bytes:
    """The bytes of a byte-level token; a name outside the alphabet stands for itself."""
    try:
        return bytes(_BYTE_OF[c] for c in name)
    except KeyError:
        return name.encode("utf-8")


def is_byte_token(name: str) -> bool:
    """True for `<0x41>` and the like, SentencePiece's tokens for single bytes."""
    if len(name) != 6 or not name.startswith("<0x") or not name.endswith(">"):
        return False
    try:
        int(name[3:5], 16)
    except ValueError:
        return False
    return True


def is_byte_level(decoder: Any) -> bool:
    """Whether a tokenizer.json's `decoder` entry is plain byte-level BPE."""
    return isinstance(decoder, dict) and (
        decoder.get("type") == "ByteLevel"
        or (
            decoder.get("type") == "Sequence"
            and [d.get("type") for d in decoder.get("decoders", ())] == ["ByteLevel"]
        )
    )


class StopStrings:
    """Cuts text before the first stop string, wherever pieces begin and end.

    Text that may turn out to be the beginning of a stop string is held back until it is known.
    Of several stop strings the one complete first counts; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = checked_stops(stops)
        self._held = ""

    def push(self, piece: str) -> tuple[str, bool]:
        """(text that is final, whether a stop string was met; nothing may follow then)."""
        if not self._stops:
            return piece, False
        text = self._held + piece
        ends = [(at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)[1]], True
        keep = max(_overlap(text, s) for s in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def checked_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple; UsageError for one that is empty or no string."""
    if not isinstance(stops, Iterable):
        raise UsageError(f"stop is {stops!r:.80}; it must be a string or several")
    stops = (stops,) if isinstance(stops, str) else tuple(stops)
    if len(stops) > MAX_STOP_STRINGS:
        raise UsageError(f"{len(stops)} stop strings were given; the limit is {MAX_STOP_STRINGS}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise UsageError(f"stop is {stop!r}; a stop string needs at least one character")
    return stops


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins, short of all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
