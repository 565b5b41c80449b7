"""Object code made flat: sections laid out once, so that loading it is copying it.

Generated modules call nothing outside themselves and refer only to their own constants, relative to
the instruction. Such an object needs no linker when it is loaded, and so no compiler in memory: a
flat module is position-independent bytes and where its functions begin. ELF for x86-64; what else
is met raises `NotFlat`, and LLVM loads the object itself.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

ALIGNMENT = 64  # of a section and of a module: one cache line
ALLOC, SYMTAB, RELA, NOBITS = 0x2, 2, 4, 8  # section flag and types of ELF
X86_64 = b"\x3e\x00"
PC32, PLT32 = 2, 4  # relocations: 32 bits, relative to their own place


class NotFlat(Exception):
    """The object needs a linker."""


class Flat(msgspec.Struct, frozen=True):
    """Position-independent code, and the offset of each symbol in it."""

    code: bytes
    symbols: dict[str, int]

    def has(self, symbols: Sequence[str]) -> bool:
        """Whether all of these are there, and every symbol in the code."""
        inside = all(0 <= place < len(self.code) for place in self.symbols.values())
        return inside and all(symbol in self.symbols for symbol in symbols)


@dataclass(frozen=True)
class Section:
    """What one entry of an ELF section table says."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def flatten(content: bytes) -> Flat:
    """The flat form of a relocatable ELF object; raises NotFlat when it has none."""
    if content[:6] != b"\x7fELF\x02\x01" or content[18:20] != X86_64:
        raise NotFlat("not an ELF object for x86-64")
    try:
        return _flattened(content)
    except (struct.error, LookupError, ValueError, OverflowError) as error:
        raise NotFlat(f"a damaged object: {error}") from None


def _flattened(content: bytes) -> Flat:
    sections = list(_sections(content))
    code, places = bytearray(), {}
    for number, section in enumerate(sections):
        if not section.flags & ALLOC or not section.size:
            continue
        if section.type == NOBITS or section.align > ALIGNMENT:
            raise NotFlat("has data of its own")
        code += bytes(-len(code) % ALIGNMENT)
        places[number] = len(code)
        code += content[section.offset : section.offset + section.size]
    symbols = list(_symbols(content, sections, places))
    for section in sections:
        if section.type == RELA and section.info in places:
            _relocate(code, content, section, places[section.info], symbols)
    return Flat(bytes(code), {name: place for name, place in symbols if name and place is not None})


def _sections(content: bytes) -> Iterator[Section]:
    table, size, count = (
        *struct.unpack_from("<Q", content, 40),
        *struct.unpack_from("<HH", content, 58),
    )
    for number in range(count):
        yield Section(*struct.unpack_from("<IIQQQQIIQQ", content, table + number * size))


def _symbols(
    content: bytes, sections: Sequence[Section], places: dict[int, int]
) -> Iterator[tuple[str, int | None]]:
    """Name and offset of every symbol, in the order of the table; no offset: it is elsewhere."""
    table = next((s for s in sections if s.type == SYMTAB), None)
    if table is None:
        raise NotFlat("has no symbols")
    strings = sections[table.link].offset
    for at in range(table.offset, table.offset + table.size, table.entry):
        name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", content, at)
        text = content[strings + name : content.index(b"\0", strings + name)].decode()
        yield text, places[home] + value if home in places else None


def _relocate(
    code: bytearray,
    content: bytes,
    section: Section,
    base: int,
    symbols: Sequence[tuple[str, int | None]],
) -> None:
    for at in range(section.offset, section.offset + section.size, section.entry):
        offset, info, addend = struct.unpack_from("<QQq", content, at)
        name, place = symbols[info >> 32]
        if info & 0xFFFFFFFF not in (PC32, PLT32) or place is None:
            raise NotFlat(f"relocation {info & 0xFFFFFFFF} against {name!r}")
        struct.pack_into("<i", code, base + offset, place + addend - (base + offset))


class Mapped:
    """Flat modules in executable memory; addresses stay valid for as long as this lives."""

    def __init__(self, modules: Sequence[Flat]) -> None:
        starts, size = [], 0
        for module in modules:
            starts.append(size)
            size += len(module.code) + -len(module.code) % ALIGNMENT
        self._memory = mmap.mmap(-1, max(size, 1))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for start, module in zip(starts, modules, strict=True):
            self._memory[start : start + len(module.code)] = module.code
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if protect(base, len(self._memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "this system does not allow generated code to run")
        self.addresses = {
            name: base + start + offset
            for start, module in zip(starts, modules, strict=True)
            for name, offset in module.symbols.items()
        }
