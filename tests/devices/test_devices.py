"""Device files: what is read, what is refused and in which line; figures say their source."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dielet.devices import (
    COMMANDS,
    built_in,
    device_text,
    load_device,
    read_device,
    read_device_file,
)
from dielet.devices.read import NEEDED
from dielet.devices.text import Places
from dielet.devices.units import BANDWIDTH, RATE, SIZE, TIME, parse, show
from dielet.errors import DamagedFile, MissingFile, UsageError
from dielet.program.commands import ENTRIES

SMALL = """\
name = "x"
chiplets = 2  # assumed
partition = "column"
shared_memory = "device"
"""
CORE = f"[engine.core]\ncommands = {[*NEEDED]}\n"
BAD = {
    "": "there is no .engine.NAME.",
    CORE + "[engine.core]\n": "line 7",
    "colour = 3\n" + CORE: "line 5: colour: is an unknown key",
    "chiplets = 4\n" + CORE: "line 5",
    "[engine.core]\ncommands = []\n": "line 5: engine.core: this engine has no commands",
    "[engine.core]\n": "line 5: engine.core: this engine has no commands",
    CORE + "sped = 1\n": "line 7: engine.core.sped: is an unknown key",
    CORE + "setup = '5'  # assumed\n": "line 7: engine.core.setup: '5' has no unit of ps",
    CORE + "setup = 5  # assumed\n": "line 7: engine.core.setup: is 5; text such as '500 ns'",
    CORE
    + "setup = '-5 ns'  # assumed\n": "line 7: engine.core.setup: is '-5 ns'; it must be above",
    CORE + "setup = '5 ns'\n": "line 7: engine.core.setup: a figure needs its source beside it",
    CORE + "slots = 3\n": "line 7: engine.core.slots: a figure needs its source beside it",
    CORE + "[memory.dram]\nbandwidth = '0 GB/s'  # assumed\n": "line 8: memory.dram.bandwidth",
    CORE + "[memory.dram]\nsize = '1 GB'  # assumed\n": "memory.dram.bandwidth: is missing",
    CORE + "peak = { bf61 = '1 TFLOP/s' }  # assumed\n": "did you mean 'bf16'?",
    "[engine.core]\ncommands = ['liner']\n": "did you mean 'linear'?",
    CORE + "[engine.other]\ncommands = ['linear']\n": "line 8: .*taken by engine core too",
    CORE + "[engine.core.port]\nl2 = '1 GB/s'  # assumed\n": "there is no .memory.l2.",
    CORE + "[spaces]\nshard = 'cache'\n": "did you mean 'shared'?",
    "[engine.core]\ncommands = ['linear', 'attention']\n": "line 6: .*no engine takes rmsnorm, rot",
    CORE + "[spaces]\nkv = 'flash'\n": "line 8: spaces.kv: there is no .memory.flash.",
    CORE + "[link.a]\nbandwidth = '1 GB/s'  # assumed\ntopology = 'ring'\n": "use one of mesh, all",
    CORE + "alongside = 300  # assumed\n": "line 7: engine.core.alongside: is 300; it is percent",
    CORE + "setup = '2 s'  # assumed\n": "longer than 1 s",
    CORE + "[memory.dram]\nbandwidth = '999 B/s'  # assumed\n": "at least 1 kB/s",
    "x = [1\n": "end of document",
    "x == 1\n": "line 5",
}


@pytest.mark.parametrize("tail", BAD)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "device.toml"
    path.write_text(SMALL + tail)
    with pytest.raises(DamagedFile, match=BAD[tail]) as caught:
        load_device(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("chiplets = 2", "chiplets = 0", "line 2: chiplets: is 0; it must be a whole number"),
        ("chiplets = 2", "chiplets = true", "line 2: chiplets"),
        ("chiplets = 2", "chiplets = 65", "at most 64"),
        ('"column"', '"diagonal"', "line 3: partition: is 'diagonal'; use one of column"),
        ('"device"', '"chiplet"', "needs .memory.dram., .memory.shared., .memory.scratchpad."),
        ('name = "x"', "", "name: is missing"),
    ],
)
def test_bad_values_of_the_first_lines(old: str, new: str, complaint: str) -> None:
    with pytest.raises(DamagedFile, match=complaint):
        read_device(SMALL.replace(old, new) + CORE, "device.toml")


def test_there_are_four_devices_of_which_every_figure_has_a_source() -> None:
    assert set(built_in()) == {"host", "rebel100", "atom", "atom-x4"}
    for name in built_in():
        device = load_device(name)
        assert device.name == name and device.text == device_text(name)
        for figure in device.figures:
            chosen = figure.path == "chiplets" and name == "host"
            known = figure.source.startswith(("source:", "assumed", "measured"))
            assert chosen or known or figure.path == "engine.core.count", figure


def test_what_no_file_says() -> None:
    with pytest.raises(MissingFile, match="neither built in"):
        load_device("cray-1")
    device = load_device("host")
    assert device.engine_of("linear") == "core" and not device.local_memory
    with pytest.raises(UsageError, match="no engine takes the command 'copy'"):
        device.engine_of("copy")
    assert device.memory_of("shared") == "cache" and device.memory_of("weights") == "dram"
    rebel = load_device("rebel100")
    assert rebel.memory_of("shared.3") == "shared" and rebel.local_memory


def test_devices_know_the_command_set() -> None:
    assert set(COMMANDS) >= set(ENTRIES)


def test_a_scratchpad_has_a_size() -> None:
    text = device_text("atom").replace(
        'size = "32 MB"                  # source: vendor architecture page, 4', "# 4"
    )
    with pytest.raises(DamagedFile, match=r"memory.scratchpad.size: is missing"):
        read_device(text, "atom.toml")


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1.2 TB/s", BANDWIDTH, 1_200_000_000_000),
        ("11 ns", TIME, 11_000),
        ("36 GB", SIZE, 36_000_000_000),
        ("4 MiB", SIZE, 4 << 20),
        ("256 TFLOP/s", RATE, 256 * 10**12),
        ("128 TOP/s", RATE, 128 * 10**12),
        ("0 ps", TIME, 0),
    ],
)
def test_units(text: str, unit, value: int) -> None:
    assert parse(text, unit) == value
    assert parse(show(value, unit), unit) == value or "Mi" in text


@pytest.mark.parametrize("text", ["", "5", "five ns", "5 parsec", "nan ns", "inf ns", "1e999 ns"])
def test_bad_units(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text, TIME)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    Places(text)
    with pytest.raises(DamagedFile):
        read_device(text, "noise.toml")


@pytest.mark.parametrize(
    ("data", "complaint"), [(b"\xff\xfe", "not text in UTF-8"), (b"x = [", "nvalid")]
)
def test_a_file_that_is_no_device_is_named(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=rf"device\.toml.*{complaint}"):
        read_device_file(path)


def test_a_mark_at_the_beginning_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (SMALL + CORE).encode())
    assert load_device(str(path)) == read_device(SMALL + CORE, "device.toml")


def test_a_pipe_is_no_device(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    os.mkfifo(path)
    with pytest.raises(DamagedFile, match=r"device\.toml is a pipe, not a file"):
        read_device_file(path)
    with pytest.raises(MissingFile, match="neither built in"):
        load_device(str(path))
