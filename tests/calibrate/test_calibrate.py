"""Calibration end to end on tiny models: what it sees, what it chooses, what it reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dielet.calibrate.inputs import Inputs
from dielet.calibrate.watch import WatchedRuntime
from dielet.checkpoint.random import RandomCheckpoint
from dielet.checkpoint.source import Source
from dielet.checkpoint.spec import ModelSpec
from dielet.errors import DamagedFile, MissingFile, UsageError
from dielet.files import file_sha256
from dielet.formats.packed import WeightFormat, unpack
from dielet.generate.compiling import cached_directory, compile_usable
from dielet.host import load_runtime
from dielet.image import CompileOptions, compile_checkpoint, open_directory
from dielet.image.accuracy import Accuracy, read_accuracy
from dielet.program import Program
from dielet.program.commands import Run
from dielet.program.interpret import as_early, execute, schedule, view
from tests.generate.fake import byte_level_tokenizer
from tests.models import LLAMA, QWEN, Bench, options

TOKENIZER = byte_level_tokenizer()
MOE = msgspec.structs.replace(
    QWEN, model_type="qwen3_moe", experts=4, experts_per_token=2, expert_intermediate=96
)
OUTLIERS = (3, 17, 40)  # inputs of the residual stream that are far larger than others


class Uneven(RandomCheckpoint):
    """Random weights whose norms make some inputs of linears matter far more than others."""

    def tensor(self, name: str) -> Source:
        source = super().tensor(name)
        return _Raised(source) if "layernorm" in name else source


class _Raised(Source):
    def __init__(self, inner: Source) -> None:
        self.inner, self.name, self.shape = inner, inner.name, inner.shape

    @property
    def kind(self) -> str:
        return self.inner.kind

    def rows(self, lo: int, hi: int) -> Any:
        values = self.inner.rows(lo, hi)
        values[:, list(OUTLIERS)] *= 12
        return values


def checkpoint(spec: ModelSpec = QWEN) -> Uneven:
    vocab = TOKENIZER.get_vocab_size(with_added_tokens=True)
    files = {"tokenizer.json": TOKENIZER.to_str().encode()}
    return Uneven(msgspec.structs.replace(spec, vocab=vocab, eos_ids=()), 7, files)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    words = np.random.default_rng(1).choice(["hello", "world", "naïve", "and", "code();"], 400)
    path.write_text(" ".join(words), encoding="utf-8")
    return path


def given(text: Path, **more: Any) -> CompileOptions:
    return options(weights="int4", calibrate=str(text), **more)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in directory.iterdir()}


@pytest.mark.parametrize("spec", [QWEN, LLAMA], ids=["qwen3", "llama"])
def test_what_enters_every_linear_is_what_its_meaning_reads(
    tmp_path: Path, spec: ModelSpec
) -> None:
    """The watched runtime against the program interpreted command by command."""
    path = compile_checkpoint(checkpoint(spec), tmp_path / "m", options(weights="bf16", chiplets=1))
    files = open_directory(path)
    tokens = np.random.default_rng(2).integers(0, 331, 16).astype(np.int32)
    expected = interpreted(files, files.program("prefill_16_kv64"), tokens)
    seen: dict[str, np.ndarray] = {}
    rt = WatchedRuntime(files, threads=2)
    (hidden,) = rt.watch(tokens, lambda names, x: seen.update(dict.fromkeys(names, x.copy())))
    assert list(seen) == list(expected) and len(seen) == 7 * spec.layers
    for name, x in expected.items():
        np.testing.assert_allclose(seen[name], x, atol=0.02 * np.abs(x).max())
    plain = load_runtime(path, threads=1)
    logits = plain.forward_all(plain.new_state(), tokens)
    for ours, theirs in zip(rt.logits(hidden), logits, strict=True):
        np.testing.assert_array_equal(ours, theirs.values)
    rt.close()
    plain.close()


def interpreted(files: Any, program: Program, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Every linear's bf16 inputs, by its parameter, as the numpy meanings compute them."""
    bench = Bench.of(files)
    memory = bench.memory(program)
    bench.give(program, memory, tokens)
    names = {share.offset: share.parameter for share in files.decoder.table.shares if share.K}
    found = {}
    for number in schedule(program, as_early):
        command = program.commands[number]
        if command.kind == "linear":
            x = view(command.operand("x"), memory).astype(np.uint32) << 16
            found[names[command.operand("w").region.offset]] = x.view(np.float32)
        execute(command, memory, Run(0, len(tokens)), program.sizes["kv"])
    return found


def test_sums_and_samples_do_not_depend_on_the_chunks() -> None:
    x = np.random.default_rng(3).standard_normal((50, 8)).astype(np.float32)
    for cuts in ([50], [7, 1, 30, 12]):
        seen = Inputs(9)
        for lo, hi in zip(np.cumsum([0, *cuts]), np.cumsum(cuts), strict=False):
            seen.see(("a", "b"), x[lo:hi])
        np.testing.assert_allclose(seen.importance()["b"], np.square(x).mean(axis=0), rtol=1e-6)
        np.testing.assert_array_equal(seen.sample("a"), x[::9])


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "m"
    return compile_usable(checkpoint(), out, given(text, int8_budget=20.0, chiplets=2))


def test_the_report_says_what_was_gained(calibrated: Path) -> None:
    found = read_accuracy(calibrated)
    assert found.mean_kl < 0.8 * found.plain_mean_kl
    assert 0 < found.same_best_token <= 1 and found.held_out_tokens >= 32
    assert [linear.name for linear in found.linears] == [
        name for name in RandomCheckpoint(QWEN).names() if "_proj" in name
    ]
    for linear in found.linears:
        assert 0.9 < linear.accumulated <= 1 + 1e-9 and 0.9 < linear.single <= 1 + 1e-9
    by_format = {name: [x.single for x in found.linears if x.format == name] for name in
                 ("int4g32m", "int8g32")}  # fmt: skip
    assert min(by_format["int8g32"]) > 0.9999 > max(by_format["int4g32m"])


def test_the_budget_bounds_the_linears(calibrated: Path, tmp_path: Path, text: Path) -> None:
    plain = compile_usable(checkpoint(), tmp_path / "m", given(text, chiplets=2))
    small, large = (
        sum(share.nbytes for share in open_directory(path).decoder.table.shares if share.K)
        for path in (plain, calibrated)
    )
    assert small < large <= 1.2 * small
    assert open_directory(plain).manifest.formats == {"int4g32m": 14}
    manifest = open_directory(calibrated).manifest
    assert set(manifest.formats) == {"int4g32m", "int8g32"}
    assert manifest.files["accuracy.json"].sha256 == file_sha256(calibrated / "accuracy.json")


def test_scales_suit_what_enters(calibrated: Path) -> None:
    """Of the linears after a raised norm, columns that are multiplied by much lose less."""
    files = open_directory(calibrated)
    name = "model.model.layers.1.mlp.up_proj.weight"
    share = next(s for s in files.decoder.table.shares if s.parameter == name)
    fmt = WeightFormat.parse(share.format)
    assert fmt.kind == "int4"
    data = files.decoder.data[share.offset : share.offset + share.nbytes]
    rows = share.hi - share.lo
    packed = data.view(fmt.record(64)).reshape(fmt.packed_shape(rows, 64))
    right = checkpoint().tensor(name).rows(share.lo, share.hi)
    wrong = np.square(unpack(fmt, packed, rows, 64) - right).mean(axis=0)
    others = np.delete(wrong, OUTLIERS).mean()
    assert wrong[list(OUTLIERS)].mean() < 0.6 * others


def test_the_same_text_gives_the_same_bytes(calibrated: Path, tmp_path: Path, text: Path) -> None:
    copy = tmp_path / "another-name.txt"
    copy.write_bytes(text.read_bytes())
    again = compile_usable(checkpoint(), tmp_path / "m", given(copy, int8_budget=20.0, chiplets=2))
    assert contents(again) == contents(calibrated)
    assert {p.name for p in tmp_path.iterdir()} == {"m", "another-name.txt"}  # no workshop left


@pytest.mark.parametrize(
    "device",
    [
        {"chiplets": 1},
        {"chiplets": 3},
        {"device": "rebel100", "partition": "column"},
        {"device": "rebel100"},
    ],
    ids=["one", "three", "rebel100-column", "rebel100"],
)
def test_mixed_formats_give_the_same_tokens_everywhere(
    calibrated: Path, tmp_path: Path, text: Path, device: dict[str, Any]
) -> None:
    path = compile_usable(checkpoint(), tmp_path / "m", given(text, int8_budget=20.0, **device))
    assert read_accuracy(path) == read_accuracy(calibrated)
    assert open_directory(path).manifest.formats == open_directory(calibrated).manifest.formats
    answers = []
    for directory in (calibrated, path):
        rt = load_runtime(directory, threads=2)
        state = rt.new_state()
        best = rt.forward(state, np.arange(40, 56, dtype=np.int32))
        tokens = []
        for _ in range(20):
            assert best is not None
            tokens.append(best.argmax)
            best = rt.forward(state, np.array([best.argmax], np.int32))
        answers.append(tokens)
        rt.close()
    assert answers[0] == answers[1] and len(set(answers[0])) > 1


def test_a_mixture_is_calibrated(tmp_path: Path, text: Path) -> None:
    path = compile_usable(checkpoint(MOE), tmp_path / "m", given(text, int8_budget=10.0))
    found = read_accuracy(path)
    assert found.mean_kl < found.plain_mean_kl
    names = {linear.name.rsplit(".", 2)[-2] for linear in found.linears}
    assert {"gate_proj", "up_proj", "down_proj", "q_proj"} <= names


def test_simulating_a_mixed_directory_plans_the_same_bytes(calibrated: Path) -> None:
    from dielet.simulator.model import Programs, open_source

    files = open_directory(calibrated)
    source = open_source(calibrated, CompileOptions())
    planner = Programs(source, files.device()).planner
    assert planner.decoder.nbytes == files.decoder.table.data_nbytes


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", UsageError, r"t\.txt has 0 tokens, too few to calibrate with: at least 256"),
        (b"hello world " * 5, UsageError, r"t\.txt has \d+ tokens, too few to calibrate with"),
        (b"\xff\xfe hello" * 99, DamagedFile, r"t\.txt: not UTF-8 text: .* at byte 0"),
        (None, MissingFile, r"t\.txt does not exist; give a text file"),
    ],
    ids=["empty", "short", "not-utf-8", "missing"],
)
def test_unusable_texts_are_one_line(
    tmp_path: Path, content: bytes | None, error: type[Exception], message: str
) -> None:
    path = tmp_path / "t.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        compile_usable(checkpoint(), tmp_path / "m", given(path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m").exists()


def test_a_long_text_ends_between_characters(tmp_path: Path) -> None:
    """64 kB are read, and a character that begins there is left out whole."""
    from dielet.generate.calibration import read_calibration

    texts = []
    for tail in ("", "é and what follows"):
        path = tmp_path / f"{len(texts)}.txt"
        path.write_text("x" * ((1 << 16) - 1) + tail, encoding="utf-8")
        texts.append(read_calibration(checkpoint(), path))
    assert texts[0].sha256 == texts[1].sha256


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weights": "bf16"}, "calibrate goes with int4 weights; weights are bf16"),
        ({"weights": None}, "calibrate goes with int4 weights; weights are not said"),
        ({"int8_budget": 0.0}, "int8_budget is 0.0; it must be above 0"),
        ({"int8_budget": 101.0}, "int8_budget is 101.0; .* at most 100"),
        ({"int8_budget": float("nan")}, "int8_budget is nan"),
        (
            {"calibrate": None, "int8_budget": 5.0},
            "int8_budget 5.0 goes with a text to calibrate by",
        ),
    ],
)
def test_options_that_contradict(text: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(given(text), **wrong)


def test_the_cache_tells_texts_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    found = set()
    for content in ("one", "two"):
        path.write_text(content)
        found.add(cached_directory(checkpoint(), given(path)))
    assert len(found) == 2


def test_without_calibration_there_is_no_report(tmp_path: Path) -> None:
    path = compile_checkpoint(checkpoint(), tmp_path / "m", options(weights="int4"))
    with pytest.raises(
        MissingFile, match=r"no accuracy\.json: it was compiled without --calibrate"
    ):
        read_accuracy(path)
    (path / "accuracy.json").write_bytes(b'{"tokens": "many"}')
    with pytest.raises(DamagedFile, match=r"accuracy\.json: .*; compile the model again"):
        read_accuracy(path)


def test_the_report_survives_json(calibrated: Path) -> None:
    found = read_accuracy(calibrated)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Accuracy) == found
