"""A prompt's keys and values in a file: read instead of computed by the next run that begins alike.

    bytes 0-7    magic          8-11  version (u32)      12-19  length of the header (u64)
    20-51        sha256 of the header
    52-...       header, JSON: what the panels are of; then the panels, of 32 positions each

The file is a cache, so one that does not fit is said and replaced. What is no such file, or was
written by a newer dielet, is refused: replacing it would lose something.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from dielet.errors import DamagedFile, DieletError, MissingFile, UsageError
from dielet.files import CannotWrite, require_file, whole_file
from dielet.formats.packed import PANEL
from dielet.generate.prefix import Bytes, Prefix, common_length
from dielet.generate.protocol import Runtime

MAGIC = b"DIELETKV"
VERSION = 1
DAMAGED = "it is damaged"
WORTHWHILE = 8  # written anew when more than this part of a prompt, an eighth, was not in it
_PREFIX = struct.Struct("<8sIQ32s")
_LONGEST_HEADER = 64 << 20
_writing = threading.Lock()


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str  # identity of the runtime
    kv_format: str
    panel_bytes: int
    tokens: tuple[int, ...]
    sha256: tuple[str, ...]  # of each panel


class _Unfit(Exception):
    """Why a prompt cache cannot be used although it may be replaced."""


class PromptFile:
    """A prompt cache named by the user; `tokens` are those that it can give."""

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.path = path
        self.tokens = () if header is None else header.tokens
        self._header = header

    @staticmethod
    def open(path: str | os.PathLike[str], runtime: Runtime) -> PromptFile:
        """Look at what is there, if anything.

        Raises UsageError for no path, MissingFile when it has no directory, DamagedFile when
        something else is there that must not be replaced.  Warns of a cache of another model.
        """
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"prompt_cache is {path!r:.80}; it must be the path of a file")
        place = Path(path)
        try:
            if not place.parent.is_dir():
                raise MissingFile(f"{place.parent} is no directory; make it for the prompt cache")
            if not place.exists() or (place.is_file() and not place.stat().st_size):
                return PromptFile(place)
            require_file(place, "the place of a prompt cache")
            with place.open("rb") as file:
                header = _read_header(file, place)
            _check_fits(header, runtime)
        except _Unfit as reason:
            _say(place, f"{reason}; the prompt is computed, and the file replaced")
            return PromptFile(place)
        except OSError as error:
            if isinstance(error, DieletError):
                raise
            raise DamagedFile(
                f"{place} cannot be read: {error.strerror}; choose another prompt cache"
            ) from None
        return PromptFile(place, header)

    def prefix(self, tokens: Sequence[int]) -> Prefix:
        """What the file has of a beginning of `tokens`; nothing, with a warning, if damaged."""
        length = common_length(self.tokens, tokens)
        if self._header is None or not length:
            return Prefix()
        try:
            return Prefix(length, self._panels(self._header, -(-length // PANEL)))
        except (OSError, DamagedFile, _Unfit) as reason:
            _say(self.path, f"{reason}; the prompt is computed, and the file replaced")
            self.tokens, self._header = (), None
            return Prefix()

    def _panels(self, header: Header, count: int) -> tuple[Bytes, ...]:
        with self.path.open("rb") as file:
            if _read_header(file, self.path) != header:
                raise _Unfit("it was replaced meanwhile")
            panels = [file.read(header.panel_bytes) for _ in range(count)]
        for data, digest in zip(panels, header.sha256, strict=False):
            if hashlib.sha256(data).hexdigest() != digest:
                raise _Unfit(DAMAGED)
        return tuple(np.frombuffer(data, np.uint8) for data in panels)

    def keep(self, tokens: Sequence[int], panel: Callable[[int], Bytes], runtime: Runtime) -> None:
        """Write `tokens`, if the file spares too little of them; warns when it cannot be written.

        `panel(n)` gives the n-th panel of 32.
        """
        missing = len(tokens) - common_length(self.tokens, tokens)
        if missing * WORTHWHILE <= len(tokens):
            return
        panels = [panel(number).tobytes() for number in range(-(-len(tokens) // PANEL))]
        digests = tuple(hashlib.sha256(data).hexdigest() for data in panels)
        header = msgspec.json.encode(
            Header(runtime.identity, runtime.kv_format, runtime.panel_bytes, tuple(tokens), digests)
        )
        front = _PREFIX.pack(MAGIC, VERSION, len(header), hashlib.sha256(header).digest())
        try:
            # Threads would write to the same temporary file.
            with _writing, whole_file(self.path) as temporary, temporary.open("wb") as file:
                file.writelines((front, header, *panels))
        except CannotWrite as error:
            warnings.warn(f"the prompt is not kept: {error}", stacklevel=2)


def _read_header(file: BinaryIO, path: Path) -> Header:
    """The header; what follows has the size that it says.  `file` is then at the panels.

    Raises _Unfit for a damaged cache, DamagedFile for what is none, or is a newer one.
    """
    size = os.fstat(file.fileno()).st_size
    front = file.read(_PREFIX.size)
    if not front.startswith(MAGIC):
        raise DamagedFile(f"{path} is no prompt cache; name another file, or remove this one")
    if len(front) < _PREFIX.size:
        raise _Unfit(DAMAGED)
    _, version, length, digest = _PREFIX.unpack(front)
    if version > VERSION:
        raise DamagedFile(
            f"{path} is a prompt cache of version {version}, this dielet reads {VERSION}; name "
            "another file, or remove this one"
        )
    data = file.read(length) if length <= min(_LONGEST_HEADER, size) else b""
    if version < VERSION or hashlib.sha256(data).digest() != digest:
        raise _Unfit(DAMAGED)
    try:
        header = msgspec.json.decode(data, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise _Unfit(DAMAGED) from None
    panels = -(-len(header.tokens) // PANEL)
    if len(header.sha256) != panels or size != file.tell() + panels * header.panel_bytes:
        raise _Unfit(DAMAGED)
    return header


def _check_fits(header: Header, runtime: Runtime) -> None:
    """Raises _Unfit unless the panels are what `runtime` would compute, to the bit."""
    if header.kv_format != runtime.kv_format:
        raise _Unfit(
            f"it was made with {header.kv_format:.20} keys and values, this model has "
            f"{runtime.kv_format}"
        )
    if (header.model, header.panel_bytes) != (runtime.identity, runtime.panel_bytes):
        raise _Unfit("it was made with another model, another machine or another dielet")
    if len(header.tokens) > runtime.max_seq_len:
        raise _Unfit(DAMAGED)


def _say(path: Path, what: str) -> None:
    warnings.warn(f"prompt cache {path}: {what}", stacklevel=3)
