"""Open a model directory: manifest, images and tables, all mapped and held against each other."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dielet.checkpoint.config import read_json, spec_from_config
from dielet.devices import Device, load_device, read_device_file, resized
from dielet.errors import DamagedFile, DieletError, UsageError
from dielet.formats.packed import PANEL, WeightFormat
from dielet.image.file import Image, map_file, open_image
from dielet.image.manifest import NAME, Manifest, check_files, read_manifest
from dielet.image.names import COS, DECODER, DEVICE, HEAD, MODEL_CONFIG, SIN, TABLE
from dielet.program import KvLayout, Program
from dielet.program.memory import aligned

Bytes = NDArray[np.uint8]
_OF_MORE_FILES = ("name", "bos_id", "eos_ids")  # fields that config.json does not decide alone
_LONGEST_HEADER = 1 << 16
# What numpy raises for headers that are none: it reads them as Python.
_NO_HEADER = (ValueError, TypeError, LookupError, SyntaxError, TokenError, RecursionError)


@dataclass(frozen=True)
class ModelFiles:
    """What a model directory holds, mapped read-only: nothing is read before it is used."""

    path: Path
    manifest: Manifest
    decoder: Image
    head: Image
    embedding: Bytes
    cos: Bytes
    sin: Bytes

    def program(self, name: str) -> Program:
        """The program of that name, as the manifest describes it; DamagedFile otherwise."""
        image = self.image_of(name)
        program = image.program(name)
        summary = next((p for p in self.manifest.programs if p.name == name), None)
        found = (program.phase, program.tokens, program.capacity, program.sizes)
        if summary is None or found != (
            summary.phase,
            summary.tokens,
            summary.capacity,
            summary.sizes,
        ):
            raise DamagedFile(
                f"{image.path}: program {name} is not the one in the manifest; "
                "compile the model again"
            )
        self._compare(program)
        return program

    def image_of(self, name: str) -> Image:
        """The file that has the program of that name."""
        return self.head if name.startswith("head_") else self.decoder

    def _compare(self, program: Program) -> None:
        """Hold what the manifest says of the model against a program."""
        manifest, spec, io = self.manifest, self.manifest.spec, program.io
        widths = {
            "spec.hidden": ("hidden_in", spec.hidden, aligned(spec.hidden, PANEL)),
            "spec.vocab": ("logits", spec.vocab, aligned(spec.vocab, PANEL)),
        }
        said: dict[str, tuple[object, object]] = {
            "device": (manifest.device, program.device),
            "chiplets": (manifest.chiplets, program.chiplets),
            "devices": (manifest.devices, program.devices),
        }
        for field, (name, columns, padded) in widths.items():
            found = io[name].width // 4 if name in io else padded
            said[field] = (columns, columns if found == padded else found)
        for field, (here, there) in said.items():
            if here != there:
                raise DamagedFile(
                    f"{self.path / NAME}: {field} is {here}, but program {program.name} is for "
                    f"{there}; compile the model again"
                )

    def spaces(self) -> dict[str, Bytes]:
        """The read-only address spaces."""
        return {
            "weights": self.decoder.data,
            "head": self.head.data,
            "embedding": self.embedding,
            "cos": self.cos,
            "sin": self.sin,
        }

    def sizes(self) -> dict[str, int]:
        return {space: len(memory) for space, memory in self.spaces().items()}

    def activation_spaces(self, head: bool) -> dict[str, int]:
        """Bytes of every address space but the cache that the head programs, or all others, use."""
        found: dict[str, int] = {}
        for program in self.manifest.programs:
            if (program.phase == "head") == head:
                for space, nbytes in program.sizes.items():
                    found[space] = max(nbytes, found.get(space, 0))
        found.pop("kv")
        return found

    def device(self) -> Device:
        """The device that the programs are for."""
        manifest, path = self.manifest, self.path / DEVICE
        device = (
            read_device_file(path) if DEVICE in manifest.files else load_device(manifest.device)
        )
        return resized(device, manifest.devices, manifest.chiplets // manifest.devices)


def open_directory(path: str | Path) -> ModelFiles:
    """Open and validate a compiled model.  MissingFile or DamagedFile says what is wrong."""
    directory = Path(path)
    manifest = read_manifest(directory)
    check_files(directory, manifest)
    _check_config(directory, manifest)
    spec = manifest.spec
    fmt = WeightFormat.parse(manifest.embedding_format)
    positions = KvLayout.of(spec, manifest.max_seq_len).positions
    rotary = (len(spec.rotations) * positions, spec.head_dim // 2)
    table = fmt.packed_shape(spec.vocab, spec.hidden)
    files = ModelFiles(
        path=directory.absolute(),  # its device is read later, perhaps in another folder
        manifest=manifest,
        decoder=open_image(directory / DECODER),
        head=open_image(directory / HEAD),
        embedding=_npy_bytes(directory / TABLE, fmt.record(spec.hidden), table),
        cos=_npy_bytes(directory / COS, np.dtype(np.float32), rotary),
        sin=_npy_bytes(directory / SIN, np.dtype(np.float32), rotary),
    )
    _check_device(files)
    _check_formats(files)
    return files


def _disagrees(directory: Path, field: str, said: object, where: str, found: object) -> DamagedFile:
    return DamagedFile(
        f"{directory / NAME}: {field} is {said!r:.80}, but {where} says {found!r:.80}; "
        "compile the model again"
    )


def _check_config(directory: Path, manifest: Manifest) -> None:
    """Hold the spec against the config.json that it was made from, where that says all of it."""
    if MODEL_CONFIG not in manifest.files:
        return
    try:
        spec = spec_from_config(read_json(directory / MODEL_CONFIG), manifest.spec.name)
    except DieletError:
        return  # of a model inside of a larger one, say, which was told how to read it
    layers = manifest.spec.layers
    ours, spec = manifest.spec.first(layers), spec.first(layers)  # some may be left out
    for field in spec.__struct_fields__:
        said, found = getattr(ours, field), getattr(spec, field)
        if field not in _OF_MORE_FILES and said != found:
            raise _disagrees(directory, f"spec.{field}", said, MODEL_CONFIG, found)


def _check_device(files: ModelFiles) -> None:
    """Hold what the manifest says of the device against its description."""
    manifest, path = files.manifest, files.path
    try:
        device = files.device()
    except UsageError as error:
        raise DamagedFile(f"{path / NAME}: device, devices or chiplets: {error}") from None
    if device.name != manifest.device:
        raise _disagrees(path, "device", manifest.device, DEVICE, device.name)


def _check_formats(files: ModelFiles) -> None:
    """Hold the number formats of linears against the images' tables."""
    manifest = files.manifest
    for image, field in ((files.decoder, "formats"), (files.head, "head_format")):
        found = {share.parameter: share.format for share in image.table.shares if share.K}
        names = list(found.values())
        counts = {name: names.count(name) for name in sorted(set(names))}
        said = manifest.formats if field == "formats" else {manifest.head_format: 1}
        if counts != said and not (field == "head_format" and manifest.tied):
            raise _disagrees(files.path, field, said, image.path.name, counts)


def _npy_bytes(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Bytes:
    """The data of a .npy file that must hold exactly this dtype and shape."""
    view = map_file(path)
    head = BytesIO(view[:_LONGEST_HEADER])
    try:
        version = np.lib.format.read_magic(head)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        found_shape, fortran, found_dtype = np.lib.format.read_array_header_1_0(head)
    except _NO_HEADER as error:
        raise DamagedFile(f"{path} is no array: {error}; compile the model again") from None
    if (found_shape, found_dtype, fortran) != (shape, dtype, False):
        raise DamagedFile(
            f"{path} holds {found_dtype} {found_shape}, the manifest says {dtype} {shape}; "
            "compile the model again"
        )
    data = np.frombuffer(view, np.uint8)[head.tell() :]
    if len(data) != dtype.itemsize * int(np.prod(shape)):
        raise DamagedFile(f"{path} has {len(data)} bytes of data; compile the model again")
    return data
