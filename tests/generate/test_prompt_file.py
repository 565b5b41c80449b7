"""Prompt caches on disk: what is reused, what is replaced, what is refused, and no damage."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dielet.errors import DamagedFile, MissingFile, UsageError
from dielet.generate.prompt_file import MAGIC, VERSION, PromptFile
from tests.generate.fake import FakeRuntime, fake_model

VOCAB = 410
PROMPT = list(range(5, 105))


def answer(prompt: list[int], file: object, **runtime: Any) -> Any:
    """By a model of its own, as in a process of its own."""
    fake = FakeRuntime(VOCAB, chunk=16)
    for name, value in runtime.items():
        setattr(fake, name, value)
    with fake_model(fake) as model:
        return model.generate(prompt, max_new_tokens=3, prompt_cache=file)


def reused(prompt: list[int], file: Path, **runtime: Any) -> int:
    """How much the file spared; the answer is that of a cold run, whatever is in the file."""
    result = answer(prompt, file, **runtime)
    cold = fake_model(FakeRuntime(VOCAB)).generate(prompt, max_new_tokens=3)
    assert result.tokens == cold.tokens
    assert result.receipt.logits_sha256 == cold.receipt.logits_sha256
    return result.receipt.reused_tokens


def warned(prompt: list[int], file: Path, message: str, **runtime: Any) -> int:
    with pytest.warns(UserWarning) as said:
        count = reused(prompt, file, **runtime)
    assert len(said) == 1 and message in str(said[0].message) and "\n" not in str(said[0].message)
    assert str(file) in str(said[0].message)
    return count


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 96, 99, 100])
def test_the_next_run_reads_what_it_would_compute(tmp_path: Path, length: int) -> None:
    file = tmp_path / "cache"
    assert reused(PROMPT, file) == 0
    kept = file.read_bytes()
    assert reused(PROMPT[:length], file) == length - 1
    assert file.read_bytes() == kept, "it has all of this prompt: nothing is written"


@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 90, 98, 99])
def test_prompts_that_differ_somewhere(tmp_path: Path, at: int) -> None:
    file = tmp_path / "cache"
    reused(PROMPT, file)
    other = [*PROMPT[:at], *[7] * (100 - at)]
    assert reused(other, file) == at
    # Written anew when it lacks more than an eighth of the prompt.
    written = 100 - at > 100 / 8
    assert reused(other, file) == (99 if written else at)
    assert reused(PROMPT, file) == (at if written else 99)


def test_only_the_prompt_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    first = answer(PROMPT, file)
    assert reused([*PROMPT, *first.tokens, 7], file) == 100


def test_a_prompt_that_was_shifted_away_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    model = fake_model(max_seq_len=128)
    options = {"prompt_cache": file, "context_shift": True}
    model.generate(PROMPT, max_new_tokens=60, **options)
    assert not file.exists()
    model.generate(PROMPT, max_new_tokens=10, **options)
    assert reused(PROMPT, file) == 99


def test_nothing_is_left_beside_it_and_it_is_a_plain_file(tmp_path: Path) -> None:
    reused(PROMPT, tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    data = (tmp_path / "cache").read_bytes()
    assert data.startswith(MAGIC) and b"pickle" not in data and not data.startswith(b"\x80")


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ({"kv_format": "int8"}, "made with bf16 keys and values, this model has int8"),
        ({"identity": "another"}, "made with another model, another machine or another dielet"),
    ],
)
def test_of_another_model_it_is_said_and_replaced(
    tmp_path: Path, runtime: dict[str, Any], message: str
) -> None:
    file = tmp_path / "cache"
    reused(PROMPT, file)
    assert warned(PROMPT, file, message, **runtime) == 0
    assert reused(PROMPT, file, **runtime) == 99


def repacked(data: bytes, **changes: Any) -> bytes:
    """The file with a changed header, its hash right again."""
    length = int.from_bytes(data[12:20], "little")
    values = {**msgspec.json.decode(data[52 : 52 + length]), **changes}
    header = msgspec.json.encode(values)
    size = len(header).to_bytes(8, "little")
    return data[:12] + size + hashlib.sha256(header).digest() + header + data[52 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:-1],
        lambda d: d[:60],
        lambda d: d[:52],
        lambda d: d[:51],
        lambda d: d[:8],
        lambda d: d + b"\0",
        lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:],
        lambda d: d[:12] + b"\xff" * 8 + d[20:],
        lambda d: d[:12] + bytes(8) + d[20:],
        lambda d: d[:8] + bytes(4) + d[12:],
        lambda d: repacked(d, tokens=list(range(33))),
        lambda d: repacked(d, tokens="many"),
        lambda d: repacked(d, panel_bytes=1 << 62),
        lambda d: repacked(d, panel_bytes=-128),
        lambda d: repacked(d, panel_bytes=0, tokens=[], sha256=[]),
        lambda d: repacked(d, sha256=[]),
        lambda d: repacked(d, more=1),
        lambda d: d[:52] + b"[" * 1000,
    ],
)
def test_damage_is_said_and_replaced(tmp_path: Path, damage: Any) -> None:
    file = tmp_path / "cache"
    reused(PROMPT, file)
    file.write_bytes(damage(file.read_bytes()))
    assert warned(PROMPT, file, "damaged; the prompt is computed, and the file replaced") == 0
    assert reused(PROMPT, file) == 99


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    """Never another answer, never a traceback: a byte of it is noticed wherever it matters."""
    file = tmp_path / "cache"
    reused(PROMPT, file)
    data = file.read_bytes()
    outcomes = {"reused": 0, "said": 0, "refused": 0}
    for at in range(0, len(data), 3):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                count = reused(PROMPT, file)
            except DamagedFile:
                outcomes["refused"] += 1
                continue
        assert len(said) == 1 and count == 0
        outcomes["said"] += 1
    assert outcomes["reused"] == 0 and outcomes["refused"] == 4  # 3 of the magic, 1 of the version
    assert outcomes["said"] == -(-len(data) // 3) - 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Chapter One. It was a dark and stormy night", "is no prompt cache; name another file"),
        (b"D", "is no prompt cache"),
        (MAGIC[:7], "is no prompt cache"),
        (
            MAGIC + (VERSION + 1).to_bytes(4, "little") + bytes(100),
            f"is a prompt cache of version {VERSION + 1}, this dielet reads {VERSION}; name",
        ),
    ],
)
def test_what_is_not_ours_to_replace_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "novel.txt"
    file.write_bytes(content)
    with pytest.raises(DamagedFile) as error:
        answer(PROMPT, file)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert file.read_bytes() == content


def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    file.touch()
    assert reused(PROMPT, file) == 0
    assert reused(PROMPT, file) == 99


def test_places_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="is no directory; make it for the prompt cache"):
        answer(PROMPT, tmp_path / "nowhere" / "cache")
    with pytest.raises(DamagedFile, match="is a directory, not a file"):
        answer(PROMPT, tmp_path)
    with pytest.raises(DamagedFile, match="is a device, not a file"):
        answer(PROMPT, "/dev/null")
    with pytest.raises(UsageError, match="prompt_cache is 5; it must be the path of a file"):
        answer(PROMPT, 5)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache"
    reused(PROMPT[:50], file)
    kept = file.read_bytes()
    real = Path.open

    def full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        return real(Path("/dev/full") if "w" in mode else path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", full)
    assert warned(PROMPT, file, "No space left on device") == 50
    assert file.read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_file_that_goes_away_is_said(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    reused(PROMPT, file)
    model = fake_model()
    stream = model.stream(PROMPT, prompt_cache=file, max_new_tokens=2)
    file.unlink()
    with pytest.warns(UserWarning, match="No such file"):
        list(stream)
    assert stream.result.receipt.reused_tokens == 0
    assert reused(PROMPT, file) == 99, "and was written again"


def test_another_prompt_cache_meanwhile_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    reused(PROMPT, file)
    stream = fake_model().stream(PROMPT, prompt_cache=file, max_new_tokens=2)
    os.unlink(file)
    reused(PROMPT[::-1], file)
    with pytest.warns(UserWarning, match="replaced meanwhile"):
        list(stream)
    assert stream.result.receipt.reused_tokens == 0


def test_threads_with_one_file_leave_a_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    model = fake_model(max_seq_len=256)
    failed: list[BaseException] = []

    def ask(first: int) -> None:
        try:
            for _ in range(10):
                model.generate([first, *PROMPT], max_new_tokens=1, prompt_cache=file)
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failed
    kept = PromptFile.open(file, model.runtime).tokens
    assert kept in [(n, *PROMPT) for n in range(4)]
    assert reused(list(kept), file) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert reused(PROMPT, tmp_path / "link") == 0
    assert (tmp_path / "link").is_symlink() and stat.S_ISREG((tmp_path / "there").stat().st_mode)
    assert reused(PROMPT, tmp_path / "there") == 99
