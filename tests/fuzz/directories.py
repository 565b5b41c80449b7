"""Readers of compiled models, and of what dielet keeps for itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

import dielet.devices
from dielet.codegen import cache
from dielet.codegen.flat import Flat, flatten
from dielet.codegen.library import _read as read_kernel
from dielet.errors import DamagedFile
from dielet.host.tables import kernel_key
from dielet.image import open_directory
from dielet.image.accuracy import Accuracy, LinearAccuracy, read_accuracy
from dielet.image.directory import _npy_bytes
from dielet.image.file import HashingWriter, open_image, write_image
from dielet.image.manifest import NAME, check_files, read_manifest
from dielet.image.names import ACCURACY
from dielet.program import KvLayout, Program, WeightPlan, verify_program
from dielet.simulator.calibrated import calibrated_host, calibrated_path
from tests.fuzz.checkpoints import SMALL
from tests.fuzz.mutate import rewritten, scratch
from tests.fuzz.reader import Ready, file_reader

HOST = Path(dielet.devices.__file__).with_name("host.toml")


def small_model() -> Path:
    from tests.models import compiled

    folder = scratch() / "m"
    spec = msgspec.structs.replace(SMALL, tied=True)
    return compiled(folder, spec, max_seq_len=32, kv_ladder=(32,)).path


def make_manifest() -> Ready:
    model = small_model()
    path = model / NAME
    sample = json.dumps(json.loads(path.read_bytes())).encode()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        manifest = read_manifest(model)
        if len(manifest.files) < 20:
            check_files(model, manifest)

    return Ready(read, (sample, path.read_bytes()))


MANIFEST_WORDS = (
    b'"layers"',
    b'"max_seq_len"',
    b'"files"',
    b'"../x":',
    b'"a\\u0000b":',
    b'"eos_ids"',
)


def small_programs() -> dict[str, Program]:
    """The programs of a model of one layer."""
    files = open_directory(small_model())
    return {name: files.program(name) for name in ("head_1", "decode_1_kv32")}


def make_program() -> Ready:
    files = open_directory(small_model())
    kv = KvLayout.of(files.manifest.spec, files.manifest.max_seq_len).nbytes
    head, others = (files.activation_spaces(is_head) for is_head in (True, False))

    def read(data: bytes) -> None:
        """What is done with a program that was loaded, before it may run."""
        try:
            program = msgspec.msgpack.decode(data, type=Program)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise DamagedFile("as `Image.program` does it") from None
        allocated = head if program.phase == "head" else others
        verify_program(program, {**allocated, **files.sizes(), "kv": kv})
        for command in program.commands:
            kernel_key(command)

    return Ready(read, tuple(map(msgspec.msgpack.encode, small_programs().values())))


def make_image() -> Ready:
    programs = tuple(small_programs().values())

    def read(path: Path) -> None:
        image = open_image(path)
        for entry in image.table.programs[:4]:
            image.program(entry.name)

    def made(count: int) -> bytes:
        out = BytesIO()
        write_image(HashingWriter(out), WeightPlan("weights", (), 64), programs[:count], iter(()))
        return out.getvalue()

    return Ready(file_reader(read, "decoder.img"), (made(1), made(2), made(0)))


def make_npy() -> Ready:
    dtype, shape = np.dtype([("q", "u1", (4, 4)), ("scale", "<f2", (4,))]), (1, 2)

    def made(array: np.ndarray[Any, Any]) -> bytes:
        out = BytesIO()
        np.save(out, array)
        return out.getvalue()

    read = file_reader(lambda path: _npy_bytes(path, dtype, shape), "cos.npy")
    return Ready(read, (made(np.zeros(shape, dtype)),))


NPY_WORDS = (
    b"'descr'", b"'shape'", b"'<f4'", b"'O'", b"('<f4', (2,))", b"[('a', '<f4')]", b"(" * 200,
    b"-" * 200, b"{" * 100, b"'\\x00'", b"True", b"9999999999999999999", b"'V9'", b"lambda: 0",
)  # fmt: skip


# What dielet keeps for itself


def make_kernels() -> Ready:
    folder = scratch()
    codes = (
        msgspec.msgpack.encode(Flat(b"\xc3" * 70, {"dielet_a": 0, "b": 64})),
        msgspec.msgpack.encode(b"\x7fELF not quite"),
    )

    def whole(code: bytes) -> bytes:
        return cache.MAGIC + hashlib.sha256(code).digest() + code

    def read(data: bytes) -> None:
        # An entry with another content than was written, and one whose hash is right all the same.
        for content in (data, whole(data[40:])):
            rewritten(folder / "entry.o", content)
            found = read_kernel(folder, "entry", ("dielet_a",))
            if isinstance(found, Flat):
                assert all(0 <= place < len(found.code) for place in found.symbols.values())

    return Ready(read, tuple(whole(code) for code in codes))


def make_objects() -> Ready:
    from dielet.codegen.jit import emit_object
    from dielet.codegen.targets import TARGETS

    text = (
        "@t = internal constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n"
        "define i32 @f(i64 %i) { %p = getelementptr [4 x i32], ptr @t, i64 0, i64 %i\n"
        "%v = load i32, ptr %p\n ret i32 %v }\n"
    )
    return Ready(flatten, (emit_object(text, TARGETS["avx2"]),))


def make_verified() -> Ready:
    """What is remembered of files that were found right."""
    from dielet.image.manifest import _Verified

    model = small_model()
    manifest = read_manifest(model)
    manifest = msgspec.structs.replace(manifest, files=dict(list(manifest.files.items())[:2]))
    check_files(model, manifest)
    path = _Verified(model)._path
    sample = path.read_bytes()

    def read(data: bytes) -> None:
        rewritten(path, data)
        check_files(model, manifest)

    return Ready(read, (sample,))


@dataclass(frozen=True)
class _Speaker:
    """What a prompt cache is held against, of a runtime."""

    identity: str = "m"
    kv_format: str = "bf16"
    panel_bytes: int = 64
    max_seq_len: int = 128


def make_prompt_cache() -> Ready:
    from dielet.generate.prompt_file import PromptFile

    path, runtime = scratch() / "kept", cast(Any, _Speaker())
    tokens = list(range(40))

    def made(count: int) -> bytes:
        path.unlink(missing_ok=True)
        PromptFile.open(path, runtime).keep(
            tokens[:count], lambda n: np.full(64, n, np.uint8), runtime
        )
        return path.read_bytes()

    def read(data: bytes) -> None:
        header = data[52 : 52 + int.from_bytes(data[12:20], "little")]
        right = data[:20] + hashlib.sha256(header).digest() + data[52:]
        for content in (data, right):  # damaged, and made by somebody who knows the form
            PromptFile.open(rewritten(path, content), runtime).prefix(tokens)

    return Ready(read, (made(40), made(1)))


def make_accuracy() -> Ready:
    folder = scratch()
    linear = LinearAccuracy("model.layers.0.mlp.up_proj.weight", "int4g32m", 640, 0.99, 0.98)
    report = Accuracy(
        text_sha256="ab" * 32, tokens=700, held_out_tokens=100, same_best_token=0.9, mean_kl=0.01,
        plain_same_best_token=0.8, plain_mean_kl=0.02, int8_budget=10.0, linears=(linear, linear),
    )  # fmt: skip

    def read(data: bytes) -> None:
        rewritten(folder / ACCURACY, data)
        read_accuracy(folder)

    return Ready(read, (msgspec.json.encode(report),))


def make_calibrated() -> Ready:
    """This machine as `devices host --calibrate` wrote it down."""
    place = calibrated_path()
    place.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        rewritten(place, data)
        calibrated_host()

    return Ready(read, (HOST.read_bytes(),))
