"""Figures changed by hand: by path, with units or as multiples, validated like the file."""

from __future__ import annotations

import pytest

from dielet.devices import load_device, overridden, resized
from dielet.errors import DamagedFile, UsageError

REBEL = load_device("rebel100")


def test_figures_are_set_by_their_path() -> None:
    device = overridden(
        REBEL, {"memory.dram.bandwidth": "0.6 TB/s", "engine.neural.peak.bf16": "x2"}
    )
    assert device.memory["dram"].bandwidth == 600 * 10**9
    assert device.engine["neural"].peak["bf16"] == 512 * 10**12
    changed = {f.path: f.source for f in device.figures if f.source.endswith("set by hand")}
    assert set(changed) == {"memory.dram.bandwidth", "engine.neural.peak.bf16"}
    assert REBEL.memory["dram"].bandwidth == 1200 * 10**9


def test_whole_numbers_and_words() -> None:
    device = overridden(
        REBEL, {"chiplets": "8", "partition": "column", "engine.neural.tile.rows": "x2"}
    )
    assert (device.chiplets, device.partition, device.engine["neural"].tile.rows) == (
        8,
        "column",
        64,
    )
    assert overridden(REBEL, {"engine.task_dma.setup": "0 ns"}).engine["task_dma"].setup == 0


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"memory.drum.size": "1 GB"}, UsageError, "no .memory.drum."),
        ({"memory.dram.colour": "red"}, DamagedFile, "unknown key"),
        ({"memory.dram.bandwidth": "fast"}, DamagedFile, "has no unit"),
        ({"memory.dram.bandwidth": "x0"}, DamagedFile, "must be above 0"),
        ({"memory.dram.bandwidth": "xx"}, UsageError, "cannot be taken"),
        ({"memory.dram.bandwith": "x2"}, UsageError, "has no memory.dram.bandwith"),
        ({"chiplets": "0"}, DamagedFile, "chiplets"),
        ({"devices": "17"}, DamagedFile, "at most 64"),
    ],
)
def test_what_no_file_may_say_cannot_be_set(changes, error, complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        overridden(REBEL, changes)


def test_other_numbers_of_chiplets_and_devices() -> None:
    two = resized(REBEL, 2, 3)
    assert (two.devices, two.chiplets) == (2, 3)
    assert resized(REBEL) == REBEL
    with pytest.raises(UsageError, match="does not describe"):
        resized(load_device("atom"), 2)
    with pytest.raises(UsageError, match="one of it"):
        resized(load_device("host"), 2)
