"""Every field of the manifest that contradicts the files beside it is found, by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dielet.checkpoint.config import config_json
from dielet.checkpoint.random import RandomCheckpoint
from dielet.errors import DamagedFile, UsageError
from dielet.host import load_runtime
from dielet.image import compile_checkpoint
from tests.models import LLAMA, options


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"config.json": config_json(LLAMA)}
    folder = tmp_path_factory.mktemp("models") / "m"
    return compile_checkpoint(
        RandomCheckpoint(LLAMA, 7, files), folder, options(weights="int8", chiplets=2)
    )


def spec(**change: object) -> Callable[[dict[str, Any]], None]:
    return lambda m: m["spec"].update(change)


CHANGES: list[tuple[dict[str, Any] | Callable[[dict[str, Any]], None], str]] = [
    ({"devices": 0}, "devices 0"),
    ({"devices": 2}, "devices"),
    ({"devices": 3}, "devices 3"),
    ({"chiplets": 0}, "chiplets 0"),
    ({"chiplets": 3}, "chiplets is 3, but program"),
    ({"kv_heads": -5}, "kv_heads -5"),
    ({"memory": {"kv": -1, "activations": 0}}, "memory is negative"),
    ({"head_format": "x"}, "head_format 'x'"),
    ({"head_format": "bf16"}, "head_format is"),
    ({"formats": {"int4g32": 14}}, "formats is"),
    ({"formats": {"zzz": 14}}, "formats 'zzz'"),
    ({"weights": "x"}, "weights 'x'"),
    ({"device": "nope"}, "device is 'nope', but device.toml says 'host'"),
    ({"embedding_format": "zzz"}, "embedding_format 'zzz'"),
    (spec(norm_eps=0.5), "spec.norm_eps is 0.5, but config.json says 1e-06"),
    (spec(rope_theta=5.0), r"spec.rope_theta is 5.0, but config.json"),
    (spec(hidden=96), "spec.hidden is 96, but config.json says 64"),
    (spec(layers=3), "its programs have another cache"),
]


@pytest.mark.parametrize(("change", "complaint"), CHANGES)
def test_a_field_that_contradicts_the_rest_is_named(
    directory: Path, change: Any, complaint: str
) -> None:
    path = directory / "manifest.json"
    good = path.read_bytes()
    manifest = json.loads(good)
    if callable(change):
        change(manifest)
    else:
        manifest.update(change)
    path.write_text(json.dumps(manifest))
    try:
        with pytest.raises(DamagedFile, match=complaint) as caught:
            load_runtime(directory, threads=1)
    finally:
        path.write_bytes(good)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_device_file_that_is_no_text_is_named(directory: Path) -> None:
    """Its hash in the manifest is right: nobody damaged it on the way."""
    path, manifest = directory / "device.toml", directory / "manifest.json"
    good = path.read_bytes(), manifest.read_bytes()
    bad = b"\xff" + good[0]
    entries = json.loads(good[1])
    entries["files"]["device.toml"] = {
        "nbytes": len(bad), "sha256": hashlib.sha256(bad).hexdigest()
    }  # fmt: skip
    path.write_bytes(bad)
    manifest.write_text(json.dumps(entries))
    try:
        with pytest.raises(DamagedFile, match=r"device\.toml is not text in UTF-8"):
            load_runtime(directory, threads=1)
    finally:
        path.write_bytes(good[0])
        manifest.write_bytes(good[1])


def test_a_link_that_leads_to_itself_is_refused_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    told: list[str] = []
    with pytest.raises(UsageError, match="loop is a link that leads back to itself; name another"):
        compile_checkpoint(
            RandomCheckpoint(LLAMA, 7), loop, options(), lambda done, total, name: told.append(name)
        )
    assert not told and [path.name for path in tmp_path.iterdir()] == ["loop"]


@pytest.mark.parametrize("below", ["x", "x/y"])
def test_a_file_where_a_directory_is_needed_is_refused_before_anything_is_compiled(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=rf"{below} cannot be made, for .*/file is a file; name"):
        compile_checkpoint(RandomCheckpoint(LLAMA, 7), tmp_path / "file" / below, options())
    assert (tmp_path / "file").read_text() == "mine"
