"""Programs for chiplets on the host: the same bits where no sum is split, the same tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.devices import built_in
from dielet.host import load_runtime
from tests.models import SPECS, compiled
from tests.program.devices import CASES, cramped, given

IDS = (np.arange(37) * 11 % 331).astype(np.int32)


def logits(folder: Path, new: int = 6) -> np.ndarray:
    """Of a prompt, of `new` greedy tokens, of two sequences at once, of all tokens of a chunk."""
    runtime = load_runtime(folder, threads=2)
    states = [runtime.new_state(), runtime.new_state()]
    found = []
    for at in range(0, len(IDS), runtime.chunk):
        last = runtime.forward(states[0], IDS[at : at + runtime.chunk])
    for _ in range(new):
        found.append(last.values.copy())
        last = runtime.forward(states[0], np.array([last.argmax], np.int32))
    runtime.forward(states[1], IDS[:3])
    found += [row.values.copy() for row in runtime.forward_batch(states, IDS[:2])]
    found += [row.values.copy() for row in runtime.forward_all(states[1], IDS[3:8])]
    runtime.close()
    return np.array(found)


@pytest.fixture(scope="module", params=[("qwen3", "bf16"), ("llama", "int8"), ("qwen3", "int4")])
def reference(request, tmp_path_factory) -> tuple[str, str, np.ndarray]:
    folder = tmp_path_factory.mktemp("host") / "m"
    family, weights = request.param
    compiled(folder, SPECS[family], weights=weights, batch_sizes=(2,))
    return family, weights, logits(folder)


@pytest.mark.parametrize("case", [*CASES, ("cramped", None, 2, None)], ids=str)
def test_the_same_tokens_as_the_host(reference, tmp_path: Path, case: tuple) -> None:
    family, weights, expected = reference
    device = cramped(tmp_path) if case[0] == "cramped" else case[0]
    options = {"weights": weights, "batch_sizes": (2,), **given(device, *case[1:])}
    files = compiled(tmp_path / "m", SPECS[family], **options)
    found = logits(tmp_path / "m")
    if case[1] != "column_row":  # no sum is split, or there is one chiplet
        np.testing.assert_array_equal(expected, found)
    np.testing.assert_array_equal(expected.argmax(1), found.argmax(1))
    np.testing.assert_allclose(expected, found, atol=4e-3 * np.abs(expected).max())
    loaded = files.device()
    assert (loaded.devices * loaded.chiplets, loaded.devices) == (
        files.manifest.chiplets,
        files.manifest.devices,
    )


def test_every_device_that_comes_along_is_among_the_cases() -> None:
    """By default, so none of their programs gives other bits than the host's."""
    defaults = {case[0] for case in CASES if case[1:] == (None, None, None)}
    assert {*defaults, "host"} == {*built_in()}


def test_heads_that_do_not_divide_are_held_twice(tmp_path: Path) -> None:
    options = {"weights": "bf16", "device": "rebel100"}
    files = compiled(tmp_path / "m", SPECS["qwen3"], **options)  # 2 KV heads on 4 chiplets
    assert files.manifest.kv_heads == 4
    assert files.manifest.memory["kv"] == 2 * 2 * 4 * 128 * 32 * 2


@pytest.mark.parametrize("device", ["rebel100", "atom-x4"])
def test_rows_that_lie_apart(tmp_path: Path, device: str) -> None:
    """Rows of a power of two would compete for the cache, so there is room between them."""
    spec = msgspec.structs.replace(SPECS["qwen3"], hidden=512)
    found = {}
    for name in ("host", device):
        compiled(tmp_path / name, spec, weights="bf16", device=name, batch_sizes=(2,))
        found[name] = logits(tmp_path / name)
    np.testing.assert_array_equal(found["host"], found[device])
