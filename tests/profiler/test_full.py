"""A full buffer, a full disk, an exception: what is left, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.errors import CapacityError
from dielet.generate.session import Model
from dielet.profiler.names import parse
from dielet.profiler.session import Session
from tests.profiler.oracle import read


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
    from dielet.profiler import ring

    def full(folder: Path | None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ring, "_nameless", full)
    with Session(tmp_path, memory=1 << 16) as session:
        model.generate("hi", max_new_tokens=60, temperature=0)
    assert session.summary().dropped > 0


def test_a_full_disk_while_writing(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dielet.profiler.file import _Sink

    room = [60_000]
    write = _Sink.write

    def limited(self: _Sink, data: bytes) -> None:
        room[0] -= len(data)
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        write(self, data)

    monkeypatch.setattr(_Sink, "write", limited)
    session = Session(tmp_path).start()
    model.generate("hi", max_new_tokens=6)
    with pytest.raises(CapacityError, match="disk is full"):
        session.stop()
    left = list(tmp_path.iterdir())
    assert not [path for path in left if path.suffix != ".pb"]
    for path in left:  # those of executions that were complete
        assert "_W0_" in read(path).commands()[0].name
        assert path.name.count("_") == 3


def test_an_exception_leaves_what_there_is(model: Model, tmp_path: Path) -> None:
    def stop(piece: str) -> None:
        raise KeyboardInterrupt

    session = Session(tmp_path)
    with pytest.raises(KeyboardInterrupt), session:
        model.generate("hi", max_new_tokens=50, callback=stop)
    assert 1 <= session.summary().executions < 50
    read(session.files[0])
