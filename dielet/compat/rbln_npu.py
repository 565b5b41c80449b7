"""The vendor's names of devices: which described device each one is, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from dielet.devices import load_device
from dielet.errors import MissingFile, UsageError

DEFAULT = "RBLN-CR03"
CHUNK_STEP = 64  # prefill chunks are multiples of it


@dataclass(frozen=True)
class Family:
    """Limits of a family, in tokens.  Source: the vendor's published optimum-rbln 0.12.0."""

    name: str
    device: str
    several: str  # the described device that several of them make up
    chunk: int
    eager: int
    partition: tuple[int, int]
    partition_default: int
    window: int


REBEL = Family("REBEL", "rebel100", "rebel100", 512, 16384, (1024, 16384), 8192, 32767)
ATOM = Family("ATOM", "atom", "atom-x4", 128, 32768, (1024, 32768), 16384, 32768)


def family_of(npu: str) -> Family:
    """The family of `RBLN-CR13`, or of a described device: of one with chiplets or without."""
    if npu.startswith("RBLN-CR"):
        return REBEL
    if npu.startswith("RBLN-CA"):
        return ATOM
    try:
        if not npu.upper().startswith("RBLN"):
            return REBEL if load_device(npu).chiplets > 1 else ATOM
    except MissingFile:
        pass
    raise UsageError(
        f"rbln_npu is {npu!r}; known are RBLN-CR.. (Rebel100), RBLN-CA.. (ATOM), and devices "
        "that dielet describes, by name or as a .toml file"
    )


def device_of(npu: str, num_devices: int) -> str:
    """The described device that a model for so many of `npu` is compiled for."""
    if not npu.upper().startswith("RBLN"):
        return npu
    family = family_of(npu)
    return family.device if num_devices == 1 else family.several
