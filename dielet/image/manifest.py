"""manifest.json: what a model directory holds, and the check that it is that and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from dielet import paths
from dielet.checkpoint.spec import ModelSpec
from dielet.errors import DamagedFile, DieletError, MissingFile, UsageError
from dielet.files import UNDECODABLE, file_sha256
from dielet.formats.cache import KV_FORMATS
from dielet.formats.packed import WeightFormat
from dielet.image.names import FILES
from dielet.image.options import WEIGHTS
from dielet.program.memory import KvLayout

SCHEMA = 2  # 2: a program declares the fewest dependencies, a device file says every source
NAME = "manifest.json"
_LONGEST = 16 << 20


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nbytes: int
    sha256: str


class ProgramSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    phase: str
    tokens: int
    capacity: int
    commands: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: dict[str, int]  # bytes by address space


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the loader must know.  An unknown field or schema is refused."""

    schema: int
    dielet_version: str
    source: str
    spec: ModelSpec
    device: str
    chiplets: int  # of all devices together
    weights: str
    formats: dict[str, int]  # weight format -> how many linears have it
    embedding_format: str
    head_format: str
    kv_format: str
    max_seq_len: int
    prefill_chunk: int
    kv_ladder: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    tied: bool
    eos_ids: tuple[int, ...]
    programs: tuple[ProgramSummary, ...]
    memory: dict[str, int]
    files: dict[str, FileEntry]
    devices: int = 1
    kv_heads: int = 0  # held by all chiplets together, if more than the model has


def read_manifest(directory: Path) -> Manifest:
    """Decode and validate `directory/manifest.json`."""
    path = directory / NAME
    if not directory.is_dir():
        raise MissingFile(f"{directory} is not a directory; give one that `dielet compile` wrote")
    if not path.is_file():
        raise MissingFile(
            f"{directory} has no {NAME}, so it is no compiled model; make one with "
            f"`dielet compile SRC -o DIR`"
        )
    if path.stat().st_size > _LONGEST:
        raise DamagedFile(f"{path} has {path.stat().st_size} bytes, at most {_LONGEST} are read")
    data = path.read_bytes()
    schema = _schema_of(data, path)
    if schema != SCHEMA:
        raise DamagedFile(
            f"{path} has schema {schema}, this dielet reads {SCHEMA}; "
            "compile the model again or use the dielet that wrote it"
        )
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (DieletError, *UNDECODABLE) as error:
        raise DamagedFile(f"{path}: {error}; compile the model again") from None
    if complaint := _complaint(manifest):
        raise DamagedFile(f"{path}: {complaint}; compile the model again")
    return manifest


def _complaint(m: Manifest) -> str:
    """What the types cannot say: the first thing that contradicts another, or nothing."""
    names = [p.name for p in m.programs]
    wanted = [f"prefill_{m.prefill_chunk}_kv{rung}" for rung in m.kv_ladder]
    wanted += [f"decode_{size}_kv{rung}" for size in m.batch_sizes for rung in m.kv_ladder]
    checks = {
        "names files outside its directory": all(Path(n).name == n for n in m.files),
        f"lists no {', '.join(FILES)}": set(FILES) <= set(m.files),
        f"max_seq_len {m.max_seq_len} is none": 32 <= m.max_seq_len <= m.spec.longest_text,
        f"prefill_chunk {m.prefill_chunk} is none": 16 <= m.prefill_chunk <= 4096,
        f"kv_ladder {m.kv_ladder} is none": rising(m.kv_ladder) and m.kv_ladder[0] >= 32,
        "the ladder does not end at max_seq_len": m.kv_ladder[-1:] == (m.max_seq_len,),
        f"batch_sizes {m.batch_sizes} are none": rising(m.batch_sizes) and m.batch_sizes[0] == 1,
        f"kv_format {m.kv_format} is unknown": m.kv_format in KV_FORMATS,
        f"chiplets {m.chiplets} are none": 1 <= m.chiplets <= 64,
        f"kv_heads {m.kv_heads} are none": 0 <= m.kv_heads <= m.chiplets * m.spec.kv_heads,
        f"its programs have another cache than {m.kv_format}": all(
            p.sizes.get("kv") == _kv_bytes(m) for p in m.programs if p.capacity
        ),
        "tied is not what the spec says": m.tied == m.spec.tied,
        f"devices {m.devices} do not divide {m.chiplets} chiplets": 1 <= m.devices <= m.chiplets
        and m.chiplets % m.devices == 0,
        f"weights {m.weights!r:.40} is unknown": m.weights in WEIGHTS,
        **{
            f"{field} {name!r:.40} is unknown": _is_format(name)
            for field, name in (
                ("embedding_format", m.embedding_format),
                ("head_format", m.head_format),
                *(("formats", name) for name in m.formats),
            )
        },
        "formats are of no linears": all(count > 0 for count in m.formats.values()),
        "head_format is not embedding_format": not m.tied or m.head_format == m.embedding_format,
        "programs are missing": {*wanted, "head_1", "head_16"} <= set(names),
        "programs are listed twice": len(names) == len(set(names)),
        "a program has no sizes": all(
            {"kv", "io"} <= set(p.sizes) and all(n >= 0 for n in p.sizes.values())
            for p in m.programs
        ),
        "an end-of-text id is outside the vocabulary": all(
            0 <= token < m.spec.vocab for token in m.eos_ids
        ),
        "memory has no owners": {"kv", "activations"} <= set(m.memory),
        "memory is negative": all(nbytes >= 0 for nbytes in m.memory.values()),
    }
    return next((complaint for complaint, holds in checks.items() if not holds), "")


def _kv_bytes(m: Manifest) -> int:
    return KvLayout.of(m.spec, m.max_seq_len, m.kv_heads, m.kv_format).nbytes


def _is_format(name: str) -> bool:
    try:
        WeightFormat.parse(name)
    except UsageError:
        return False
    return True


def rising(numbers: tuple[int, ...]) -> bool:
    return bool(numbers) and list(numbers) == sorted(set(numbers))


class _Schema(msgspec.Struct):
    schema: int = 0


def _schema_of(data: bytes, path: Path) -> int:
    try:
        return msgspec.json.decode(data, type=_Schema).schema
    except UNDECODABLE as error:
        raise DamagedFile(f"{path} is no manifest: {error}; compile the model again") from None


def check_files(directory: Path, manifest: Manifest) -> None:
    """Hold every file's size and sha256 against the manifest.

    Reading gigabytes takes seconds, so a file that was found right is remembered in the cache by
    its size, inode and times of change, and read again only when one of those differs.
    """
    known = _Verified(directory)
    for name, entry in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise MissingFile(f"{path} is missing; compile the model again")
        size = path.stat().st_size
        if size != entry.nbytes:
            raise DamagedFile(
                f"{path} has {size} bytes, the manifest says {entry.nbytes}; "
                "compile the model again"
            )
        if not known.has(path, entry.sha256) and file_sha256(path) != entry.sha256:
            raise DamagedFile(
                f"{path} is damaged: its sha256 is not the manifest's; compile the model again"
            )
        known.add(path, entry.sha256)
    known.save()


def remember_files(directory: Path, target: Path, files: dict[str, FileEntry]) -> None:
    """Note files as found right that were just written in `directory`, soon to be `target`."""
    known = _Verified(target)
    for name, entry in files.items():
        known.add(directory / name, entry.sha256)
    known.save()


def forget_files(target: Path) -> None:
    """Undo `remember_files` for a directory that is about to go."""
    _Verified(target).forget()


class _Verified:
    """Files of one directory that were hashed before and have not changed since."""

    def __init__(self, directory: Path) -> None:
        name = hashlib.sha256(os.path.realpath(os.fsencode(directory))).hexdigest()[:32]
        self._path = paths.cache_dir("verified", f"{name}.json")
        self._seen: dict[str, str] = {}
        self._new: dict[str, str] = {}
        try:
            loaded = json.loads(self._path.read_bytes())
            self._seen = loaded if isinstance(loaded, dict) else {}
        except (OSError, ValueError, RecursionError):
            pass  # nothing remembered: everything is hashed

    def has(self, path: Path, sha256: str) -> bool:
        return self._seen.get(path.name) == self._mark(path, sha256)

    def add(self, path: Path, sha256: str) -> None:
        self._new[path.name] = self._mark(path, sha256)

    def save(self) -> None:
        if self._new == self._seen:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{id(self)}.tmp")
            temporary.write_text(json.dumps(self._new))
            temporary.replace(self._path)
        except OSError:
            pass  # a cache that cannot be written costs time, not correctness

    def forget(self) -> None:
        with suppress(OSError):  # it is a small file of a cache
            self._path.unlink(missing_ok=True)

    @staticmethod
    def _mark(path: Path, sha256: str) -> str:
        stat = path.stat()
        times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"  # anybody can set back the first
        return f"{stat.st_size} {stat.st_ino} {times} {sha256}"
