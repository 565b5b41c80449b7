"""Model directories: what is in them, that they appear whole or not at all, and bad options."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.source import Source
from dielet.errors import (
    CapacityError,
    DamagedFile,
    DieletError,
    NumericError,
    Unsupported,
    UsageError,
)
from dielet.formats.packed import WeightFormat
from dielet.image import CompileOptions, compile_checkpoint, open_directory, read_manifest
from dielet.image.file import HashingWriter
from dielet.image.formats import choose_format, default_weights
from dielet.image.manifest import SCHEMA
from dielet.program.commands import ENTRIES
from dielet.program.select import chunks, ladder, program_name, rung_for
from tests.models import LLAMA, QWEN, compiled, options, plan

ARTEFACTS = {
    "manifest.json",
    "decoder_model_fixed.img",
    "norm_head_fixed.img",
    "token_embedding_weight.npy",
    "cos_weight.npy",
    "sin_weight.npy",
}


def test_the_five_artefacts_and_the_manifest(tmp_path: Path) -> None:
    files = compiled(tmp_path / "m", chiplets=3, weights="int8")
    names = {p.name for p in files.path.iterdir()}
    assert names >= ARTEFACTS
    assert set(files.manifest.files) == names - {"manifest.json"}
    programs = [p.name for p in files.manifest.programs]
    assert programs == [
        "prefill_16_kv64",
        "prefill_16_kv128",
        "decode_1_kv64",
        "decode_1_kv128",
        "head_1",
        "head_16",
    ]
    assert np.load(files.path / "cos_weight.npy").shape == (128, 16)


def test_a_tied_head_stores_no_weights_of_its_own(tmp_path: Path) -> None:
    tied = compiled(tmp_path / "tied", QWEN)
    assert {s.parameter for s in tied.head.table.shares} == {"model.model.norm.weight"}
    untied = compiled(tmp_path / "untied", LLAMA)
    assert {s.parameter for s in untied.head.table.shares} == {
        "model.model.norm.weight",
        "model.lm_head.weight",
    }
    reads = {
        o.region.space for c in tied.program("head_1").commands for o in c.operands if o.role == "w"
    }
    assert reads == {"embedding"}


def test_the_embedding_is_an_ordinary_array(tmp_path: Path) -> None:
    files = compiled(tmp_path / "m", weights="bf16")
    table = np.load(files.path / "token_embedding_weight.npy", mmap_mode="r")
    fmt = WeightFormat.parse(files.manifest.embedding_format)
    assert table.shape == fmt.packed_shape(QWEN.vocab, QWEN.hidden)
    assert not table.dtype.hasobject


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    a, b = (compiled(tmp_path / n, chiplets=2, weights="int4") for n in "ab")
    assert a.manifest.files == b.manifest.files


def test_more_rungs_add_only_commands(tmp_path: Path) -> None:
    few = compiled(tmp_path / "few", kv_ladder=(128,))
    many = compiled(tmp_path / "many", kv_ladder=(32, 64, 96, 128))
    assert few.decoder.table.data_nbytes == many.decoder.table.data_nbytes
    assert few.manifest.memory == many.manifest.memory


def test_a_failing_compile_leaves_nothing(tmp_path: Path) -> None:
    class Failing(RandomCheckpoint):
        def tokenizer_files(self) -> dict[str, bytes]:
            raise DieletError("the disk is on fire")

    with pytest.raises(DieletError, match="on fire"):
        compile_checkpoint(Failing(QWEN, 1), tmp_path / "m", options())
    assert list(tmp_path.iterdir()) == []


def test_compiling_again_replaces_but_never_a_stranger(tmp_path: Path) -> None:
    compiled(tmp_path / "m", weights="bf16")
    files = compiled(tmp_path / "m", weights="int8")
    assert files.manifest.weights == "int8"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    stranger = tmp_path / "letters"
    stranger.mkdir()
    (stranger / "dear.txt").write_text("keep me")
    with pytest.raises(UsageError, match="no compiled model"):
        compile_checkpoint(RandomCheckpoint(QWEN, 1), stranger, options())
    assert (stranger / "dear.txt").read_text() == "keep me"


def test_what_an_older_dielet_compiled_is_refused_and_replaced(tmp_path: Path) -> None:
    compile_checkpoint(RandomCheckpoint(QWEN, 1), tmp_path, options())
    manifest = tmp_path / "manifest.json"
    new = f'"schema":{SCHEMA}'.encode()
    data = manifest.read_bytes().replace(new.replace(b":", b": "), new)
    assert new in data
    manifest.write_bytes(data.replace(new, f'"schema":{SCHEMA - 1}'.encode()))
    with pytest.raises(DamagedFile, match=f"schema {SCHEMA - 1}, .*compile the model again"):
        open_directory(tmp_path)
    compile_checkpoint(RandomCheckpoint(QWEN, 1), tmp_path, options())
    assert open_directory(tmp_path).manifest.schema == SCHEMA


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        ('{"name": "a browser extension", "manifest_version": 3}', "not one that dielet wrote"),
        ("[]", "not one that dielet wrote"),
        ("not JSON", "not one that dielet wrote"),
        ('{"schema": 99, "dielet_version": "9", "files": {}}', "has schema 99"),
    ],
)
def test_another_programs_manifest_is_not_ours(
    tmp_path: Path, manifest: str, complaint: str
) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    (tmp_path / "background.js").write_text("years of work")
    with pytest.raises(UsageError, match=complaint):
        compile_checkpoint(RandomCheckpoint(QWEN, 1), tmp_path, options())
    assert (tmp_path / "background.js").read_text() == "years of work"


def test_what_people_put_into_a_compiled_model_is_not_deleted(tmp_path: Path) -> None:
    target = compiled(tmp_path / "m").path
    (target / "notes.md").write_text("mine")
    (target / "chat_template.jinja").mkdir()  # of ours in name only
    with pytest.raises(UsageError, match=r"holds chat_template.jinja, notes.md, which dielet did"):
        compile_checkpoint(RandomCheckpoint(QWEN, 1), target, options())
    assert (target / "notes.md").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_what_came_while_compiling_is_not_deleted(tmp_path: Path) -> None:
    target = compiled(tmp_path / "m").path
    with pytest.raises(UsageError, match=r"holds trace\.pb"):
        compile_checkpoint(
            RandomCheckpoint(QWEN, 1),
            target,
            options(),
            progress=lambda done, total, name: (target / "trace.pb").touch(),
        )
    assert (target / "trace.pb").exists()


def test_companions_of_a_compiled_model_are_replaced_with_it(tmp_path: Path) -> None:
    target = compiled(tmp_path / "m").path
    for name in ("vocab.json", "prefill.rbln", "rbln_config.json"):
        (target / name).write_text("{}")
    assert not (compiled(target).path / "vocab.json").exists()


def test_a_full_disk_at_any_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = HashingWriter.write, 0

    def fill(self: HashingWriter, data: bytes) -> None:
        nonlocal room
        room -= 1
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, data)

    monkeypatch.setattr(HashingWriter, "write", fill)
    failures = 0
    for allowed in range(1000):
        room = allowed
        try:
            compile_checkpoint(RandomCheckpoint(QWEN, 1), tmp_path / "m", options())
            break
        except DieletError as error:
            failures += 1
            assert "No space left" in str(error) and list(tmp_path.iterdir()) == []
    assert failures > 20 and (tmp_path / "m" / "manifest.json").is_file()


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    class Damaged(RandomCheckpoint):
        def tensor(self, name: str):  # type: ignore[no-untyped-def]
            source = super().tensor(name)
            if not name.endswith("up_proj.weight"):
                return source
            rows = source.rows

            class Holed(type(source)):  # type: ignore[misc]
                def rows(self, lo: int, hi: int):  # type: ignore[no-untyped-def]
                    values = rows(lo, hi)
                    values[0, 0] = np.nan
                    return values

            return Holed(source.name, source.shape, source.seed)

    for weights in ("bf16", "int8", "int4"):
        with pytest.raises(NumericError, match="up_proj"):
            compile_checkpoint(Damaged(QWEN, 1), tmp_path / "m", options(weights=weights))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"weights": "int3"}, "one of bf16, int8, int4"),
        ({"kv": "fp8"}, "kv is 'fp8'; use one of bf16, int8"),
        ({"weights": "int8", "group": 48}, "one of 32, 64, 128"),
        ({"weights": "bf16", "group": 32}, "bf16 has none"),
        ({"chiplets": 0}, "from 1 to 64"),
        ({"prefill_chunk": 100}, "multiple of 16"),
        ({"max_seq_len": 100}, "multiple of 32"),
        ({"max_seq_len": 8192}, "beyond the model's 4096"),
        ({"kv_ladder": (64, 32)}, "rising"),
        ({"kv_ladder": (64, 96)}, "must end at max_seq_len"),
        ({"layers": 3}, "the model has 2"),
        ({"device": "cray-1"}, "neither built in"),
        ({"weights": "int8", "group": 128}, "which group 128 does not divide; use --group 64"),
        ({"random_weights": -1}, "must not be negative"),
    ],
)
def test_bad_options_say_what_would_do(given: dict[str, object], complaint: str) -> None:
    if "max_seq_len" in given:
        given = {"kv_ladder": None, **given}
    with pytest.raises(DieletError, match=complaint):
        plan(**given)


@pytest.mark.parametrize("device", ["host", "rebel100", "atom"])
def test_an_int8_cache_is_about_half(device: str) -> None:
    """A byte for each number and two for each head's scale, on every device and in every figure."""
    bf16, int8 = (plan(device=device, kv=kv) for kv in ("bf16", "int8"))
    D = bf16.spec.head_dim
    assert (bf16.kv.position_bytes, int8.kv.position_bytes) == (2 * D, D + 2)
    share = (D + 2) / (2 * D)
    assert int8.memory_by_owner()["kv"] == share * bf16.memory_by_owner()["kv"]
    for a, b in zip(bf16.programs, int8.programs, strict=True):
        assert b.sizes["kv"] == share * a.sizes["kv"]
        for before, after in zip(a.commands, b.commands, strict=True):
            moved = [
                {role: n for role, n in {**cost.reads, **cost.writes}.items() if "cache" in role}
                for cost in (ENTRIES[c.kind].cost(c) for c in (before, after))
            ]
            assert moved[1] == {role: share * n for role, n in moved[0].items()}
            assert after.attrs.get("kv") == ("int8" if moved[1] else None)


def test_unknown_options_suggest_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'weights'"):
        CompileOptions.of(wieghts="int8")


class Fake:
    def __init__(self, K: int, *exact: str) -> None:
        self.K = K
        self.exact_formats = tuple(WeightFormat.parse(name) for name in exact)


def test_the_checkpoint_decides_when_nobody_asked() -> None:
    assert default_weights({"a": Fake(64, "int4g32m"), "b": Fake(64, "int4g32m")}) == "int4"
    assert default_weights({"a": Fake(64)}) == "bf16"
    assert choose_format("a", Fake(64, "int4g32m", "int8g32m"), "int8", None).name == "int8g32m"
    assert choose_format("a", Fake(576), "int8", None).name == "int8g64"
    assert choose_format("a", Fake(2048), "int4", None).name == "int4g32m"
    assert choose_format("a", Fake(2048), "int4", 64, False).name == "int4g64"
    assert choose_format("a", Fake(64, "int4g32"), "int4", None).name == "int4g32"
    assert choose_format("a", Fake(64, "int4g32"), "int4", None, True).name == "int4g32m"
    assert choose_format("e", Fake(2048), "int4", None, table=True).name == "int8g128"
    assert choose_format("e", Fake(64, "int4g32"), "int4", None, table=True).name == "int4g32"
    with pytest.raises(UsageError, match="no multiple of 32"):
        choose_format("a", Fake(48), "int8", None)


def test_choosing_a_program_over_all_lengths() -> None:
    rungs = ladder(2048)
    assert rungs == (512, 1024, 2048)
    assert ladder(512) == (512,) and ladder(640) == (512, 640) and ladder(64) == (64,)
    for past in range(0, 2048):
        for new in (1, 2, 127, 128):
            if past + new > 2048:
                with pytest.raises(CapacityError, match=f"{past + new} tokens .* context of 2048"):
                    rung_for(rungs, past, new)
                continue
            name = program_name(rungs, 128, past, new)
            rung = int(name.rpartition("kv")[2])
            assert rung >= past + new and (rung == 512 or rung // 2 < past + new)
            assert name.startswith("decode_1_" if new == 1 else "prefill_128_")
    for length in range(1, 700):
        assert sum(chunks(length, 128)) == length and max(chunks(length, 128)) <= 128


def test_the_manifest_is_strict(tmp_path: Path) -> None:
    path = compiled(tmp_path / "m").path / "manifest.json"
    good = json.loads(path.read_bytes())
    for change, complaint in (
        ({"colour": 1}, "unknown field"),
        ({"schema": 99}, "schema 99"),
        ({"kv_format": "fp4"}, "kv_format fp4 is unknown"),
        ({"kv_format": "int8"}, "another cache than int8"),
        ({"chiplets": "two"}, "Expected `int`"),
        ({"spec": {**good["spec"], "heads": 5}}, "not a multiple of kv_heads"),
        ({"files": {"../x": {"nbytes": 1, "sha256": ""}}}, "outside its directory"),
    ):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(DieletError, match=complaint):
            read_manifest(path.parent)
    path.write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(DieletError, match="compile the model again"):
        read_manifest(path.parent)


def test_every_damaged_file_is_found(tmp_path: Path) -> None:
    files = compiled(tmp_path / "m")
    for name in files.manifest.files:
        path = files.path / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for content, complaint in ((bytes(flipped), "damaged"), (whole[:-1], "bytes")):
            path.write_bytes(content)
            with pytest.raises(DieletError, match=complaint) as caught:
                open_directory(files.path)
            assert name in str(caught.value) and "\n" not in str(caught.value)
        path.unlink()
        with pytest.raises(DieletError, match="missing"):
            open_directory(files.path)
        path.write_bytes(whole)
    open_directory(files.path)


def test_no_directory_and_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(DieletError, match="not a directory"):
        open_directory(tmp_path / "nowhere")
    with pytest.raises(DieletError, match="dielet compile"):
        open_directory(tmp_path)


def test_the_manifest_knows_every_program(tmp_path: Path) -> None:
    files = compiled(tmp_path / "m")
    for summary in files.manifest.programs:
        program = files.program(summary.name)
        assert (program.phase, program.tokens, program.capacity, len(program.commands)) == (
            summary.phase,
            summary.tokens,
            summary.capacity,
            summary.commands,
        )
        assert msgspec.to_builtins(program.sizes) == summary.sizes


def test_a_file_altered_in_place_is_found_though_its_time_was_set_back(tmp_path: Path) -> None:
    path = compiled(tmp_path / "m").path / "decoder_model_fixed.img"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xff" * 50)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DieletError, match="damaged"):
        open_directory(path.parent)


@pytest.mark.parametrize(
    ("positions", "default"), [(2000, 1984), (33, 32), (32, 32), (1 << 17, 8192)]
)
def test_the_default_context_is_whole_panels(positions: int, default: int) -> None:
    assert CompileOptions().resolved_max_seq_len(positions) == default


@pytest.mark.parametrize("asked", [2000, 2016, 33])
def test_a_refused_context_names_one_that_is_accepted(asked: int) -> None:
    with pytest.raises(UsageError, match=r"use (at most )?\d+$") as caught:
        CompileOptions(max_seq_len=asked).resolved_max_seq_len(2000)
    named = int(str(caught.value).rpartition(" ")[2])
    assert CompileOptions(max_seq_len=named).resolved_max_seq_len(2000) == named


def test_a_batch_size_that_is_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"batch_sizes \(4, 4\): name each of them once"):
        CompileOptions(batch_sizes=(4, 4))


def test_a_model_of_too_few_positions_is_refused_in_one_sentence() -> None:
    with pytest.raises(Unsupported, match=r"has 16 positions; the shortest context .* is 32"):
        CompileOptions().resolved_max_seq_len(16)


def test_a_model_of_odd_length_compiles_by_default(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(QWEN, max_position=2000)
    compile_checkpoint(RandomCheckpoint(spec, 7), tmp_path / "m", CompileOptions(layers=1))
    assert open_directory(tmp_path / "m").manifest.max_seq_len == 1984


def test_nan_in_a_norm_is_damage_and_names_the_checkpoint(tmp_path: Path) -> None:
    class Damaged(RandomCheckpoint):
        def tensor(self, name: str) -> Source:
            source = super().tensor(name)
            return replace(source, centre=np.nan) if name == "model.model.norm.weight" else source

    with pytest.raises(DamagedFile, match=r"random.*: model\.model\.norm\.weight holds NaN"):
        compile_checkpoint(Damaged(QWEN, 1), tmp_path / "m", options())
