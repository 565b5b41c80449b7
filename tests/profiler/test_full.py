"""A full buffer, a full disk, an exception: what is left, and what is said of the rest."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest

import dielet
from dielet.compat.rbln_tracing import ModelledSession
from dielet.errors import CapacityError, UsageError
from dielet.generate.session import Model
from dielet.profiler import ring, writer
from dielet.profiler.file import _Sink
from dielet.profiler.names import parse
from dielet.profiler.session import Session
from tests.profiler.oracle import read
from tests.profiler.talking import talking


def test_the_buffer_keeps_the_newest_and_says_so(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(tmp_path, memory=1 << 16, disk=0) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
    found = session.summary()
    assert found.dropped > 0 and found.dropped_executions > 0
    trace = read(session.files[0])
    assert trace.attributes["dropped_command_count"] == found.dropped
    sequences = [(parse(s.name) or pytest.fail()).sequence for s in trace.commands()]
    assert max(sequences) == 58 and min(sequences) > 0
    assert f"{found.dropped:,} commands" in capsys.readouterr().err
    assert "dropped" in str(found)
    with Session(tmp_path / "all", memory=1 << 16) as other:  # the rest goes to disk
        model.generate("hi", max_new_tokens=60, temperature=0)
    whole = other.summary()
    assert whole.dropped == 0 and whole.commands == found.commands + found.dropped
    assert sorted(p.suffix for p in (tmp_path / "all").iterdir()) == [".pb"] * 61


def test_a_full_disk_while_recording_is_an_overflow(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path | None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring, "_nameless", full)
    with Session(tmp_path, memory=1 << 16) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
    assert session.summary().dropped > 0


class Disk:
    """Room for so many bytes in the .pb files of a folder, as they are at that moment."""

    def __init__(self, folder: Path, room: int, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.room = folder, room
        write = _Sink.write

        def limited(sink: _Sink, data: bytes) -> None:
            used = sum(path.stat().st_size for path in self.folder.iterdir())
            if used + len(data) > self.room:
                write(sink, data[: max(self.room - used, 0)])  # a part finds room, as on disks
                raise OSError(errno.ENOSPC, "No space left on device")
            write(sink, data)

        patch.setattr(_Sink, "write", limited)


@pytest.mark.parametrize("compress", [False, True])
def test_no_room_for_the_merged_file(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    """Nothing is left of it; the records are, until there is room."""
    disk = Disk(tmp_path, 5_000, monkeypatch)
    session = Session(tmp_path, compress=compress).start()
    model.generate("hi", max_new_tokens=6)
    with pytest.raises(CapacityError, match="disk is full") as caught:
        session.stop()
    assert ("compressed traces" in str(caught.value)) == (not compress)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="could not be written; make room"):
        session.summary()
    disk.room = 10**9
    assert len(session.stop()) == 7
    assert read(session.files[0]).attributes["execution_count"] == 6
    assert session.summary().executions == 6
    with pytest.raises(UsageError, match="not running"):
        session.stop()


def test_a_session_that_found_no_room_is_written_elsewhere(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    Disk(tmp_path / "full", 5_000, monkeypatch)
    session = Session(tmp_path / "full").start()
    model.generate("hi", max_new_tokens=2)
    with pytest.raises(CapacityError):
        session.stop()
    session.output_dir = tmp_path / "other"
    monkeypatch.undo()
    assert {path.parent for path in session.stop()} == {tmp_path / "other"}


@pytest.mark.parametrize("share", [0.3, 0.95, 1.4, 3])
def test_files_of_single_executions_make_way_for_the_merged_one(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Whatever the room, as long as the merged file fits: `share` of the others does beside it."""
    monkeypatch.setattr(writer, "BATCH_SLICES", 200)
    sizes = []
    for executions in (True, False):
        folder = tmp_path / str(executions)
        with Session(folder, executions=executions) as session:
            model.generate("hi", max_new_tokens=20, temperature=0)
        sizes.append(sum(path.stat().st_size for path in folder.iterdir()))
    both, merged = sizes
    room = int(merged * 1.05 + share * (both - merged) * 0.5)
    (tmp_path / "small").mkdir()
    Disk(tmp_path / "small", room, monkeypatch)
    with Session(tmp_path / "small") as session:
        model.generate("hi", max_new_tokens=20, temperature=0)
    left = sorted(path.name for path in (tmp_path / "small").iterdir())
    assert left == sorted(path.name for path in session.files)
    assert read(session.files[0]).attributes["execution_count"] == 20
    complete = room >= both
    assert len(left) == (21 if complete else 1)
    assert session.summary().left_out == (0 if complete else 20)
    assert ("the merged one has everything" in capsys.readouterr().err) == (not complete)


def test_records_leave_room_for_their_traces(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk there are never so many records that what they say would find no room."""
    free = ring.LEAST_ROOM + (700 << 10)
    spilled = 0
    write = io.FileIO.write

    class Counting(io.FileIO):
        def write(self, data) -> int:  # type: ignore[no-untyped-def]
            nonlocal spilled
            spilled = max(spilled, self.tell() + len(data))
            return write(self, data)

    def usage(folder: Path) -> object:
        return type("Usage", (), {"free": free - spilled})

    monkeypatch.setattr(ring.shutil, "disk_usage", usage)
    monkeypatch.setattr(ring.io, "FileIO", Counting)
    with Session(tmp_path, memory=1 << 16, executions=False) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
        model.generate("hi", max_new_tokens=60, temperature=0)
    found = session.summary()
    assert 0 < spilled <= 100_000 and found.dropped > 0
    assert found.file_bytes < free - spilled


def test_a_vendor_script_is_told_what_was_dropped(tmp_path: Path) -> None:
    """And how long it ran on this machine, which its modelled times do not say."""
    folder = talking(tmp_path / "m", device="rebel100", weights="bf16", chiplets=2)
    session = ModelledSession(tmp_path / "out")
    session._memory, session._disk, session.executions = 1 << 16, 0, False
    with dielet.load(folder, threads=2) as npu, session:
        npu.generate("hi", max_new_tokens=60, temperature=0)
    found = session.summary()
    said = read(session.files[0]).attributes
    assert said["device_clock"] == "modelled"
    assert said["dropped_command_count"] == found.dropped > 0
    assert said["command_count"] == found.commands
    assert 0 < said["wall_ns"] < said["run_and_write_ns"] and said["write_ns"] > 0


def test_an_exception_leaves_what_there_is(model: Model, tmp_path: Path) -> None:
    def stop(piece: str) -> None:
        raise KeyboardInterrupt

    session = Session(tmp_path)
    with pytest.raises(KeyboardInterrupt), session:
        model.generate("hi", max_new_tokens=50, callback=stop)
    assert 1 <= session.summary().executions < 50
    read(session.files[0])
