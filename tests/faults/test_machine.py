"""A machine that lacks memory, room to write, or the instructions that code was made for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dielet.codegen import KernelKey, compile_kernels
from dielet.codegen.targets import TARGETS, host_target
from dielet.image.manifest import SCHEMA
from tests.faults.conftest import SMALL, Dielet, assert_one_line
from tests.faults.disk import process

PLACES = [
    pytest.param("compile", "-o", id="compile"),
    pytest.param("run", "--profile", id="profile"),
    pytest.param("analyze", "--html", id="html"),
    pytest.param("analyze", "--csv", id="csv"),
    pytest.param("analyze", "--parquet", id="parquet"),
    pytest.param("simulate", "--profile", id="modelled"),
    pytest.param("simulate", "--csv", id="sweep"),
]


@pytest.mark.parametrize(("command", "option"), PLACES)
def test_a_place_that_nobody_can_write(
    dielet: Dielet, checkpoint: Path, model: Path, trace: Path, command: str, option: str
) -> None:
    """Not even root can make anything in /proc/self."""
    argv: dict[str, list[object]] = {
        "compile": [checkpoint, *SMALL],
        "run": [model, "-p", "hi", "--max-new-tokens", 1],
        "analyze": [trace],
        "simulate": [checkpoint, "--prompt-tokens", 2, "--new-tokens", 1, "--set", "chiplets=1"],
    }
    ended = dielet(command, *argv[command], option, "/proc/self/there")
    assert_one_line(ended)
    assert "/proc/self/there" in ended.err


def test_a_folder_without_the_right_to_write(
    dielet: Dielet, checkpoint: Path, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    assert_one_line(dielet("compile", checkpoint, "-o", tmp_path / "m", *SMALL))
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_no_memory_for_a_cache(model: Path, dielet: Dielet) -> None:
    def run() -> int:
        import dielet as api
        from dielet.errors import CapacityError

        with api.load(model, threads=1) as loaded:
            loaded.generate([1], max_new_tokens=1)  # everything but another cache is there now
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize()
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
            states = []
            try:
                for _ in range(100_000):
                    states.append(loaded.runtime.new_state())
            except CapacityError as error:
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
                print(error)
                return 7
        return 0

    ended = process(run)
    assert ended.code == 7, ended.err
    assert "cache" in ended.out and "memory" in ended.out and ended.out.count("\n") == 1


def test_a_cache_that_cannot_be_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/cache")
    argv = [sys.executable, "-m", "dielet", "run", str(model), "-p", "hi", "--max-new-tokens", "1"]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
    assert ended.stderr.count("cannot write /proc/self/cache") == 1


def test_a_cache_full_of_nonsense(
    dielet: Dielet, model: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("run", model, "-p", "hi", "--max-new-tokens", 1, "--temperature", 0)
    right = dielet(*argv)
    assert right.code == 0
    files = [path for path in own_cache.rglob("*") if path.is_file()]
    assert len(files) > 5
    for content in (b"", b"\x00" * 100, b"[" * 100_000, b'{"a": 1}', b"\xff\xfe"):
        for path in files:
            path.write_bytes(content)
        again = dielet(*argv)
        assert again.code == 0 and again.out == right.out and "Traceback" not in again.err


def test_a_cache_whose_entries_are_folders(dielet: Dielet, model: Path, own_cache: Path) -> None:
    argv = ("run", model, "-p", "hi", "--max-new-tokens", 1, "--temperature", 0)
    right = dielet(*argv)
    for path in [path for path in own_cache.rglob("*") if path.is_file()]:
        path.unlink()
        path.mkdir()
    again = dielet(*argv)
    assert again.code == 0 and again.out == right.out and "Traceback" not in again.err


def test_code_for_another_machine_is_not_run(tmp_path: Path) -> None:
    """What a machine with more instructions left in a cache that both use."""
    key = KernelKey("convert", ())
    best, plain = host_target(), TARGETS["plain"]
    assert compile_kernels([key], best, tmp_path).compiled == 2
    assert compile_kernels([key], best, tmp_path).compiled == 0
    if best.name != "plain":
        assert compile_kernels([key], plain, tmp_path).compiled == 2
    assert compile_kernels([key], plain, tmp_path).compiled == 0


@pytest.mark.parametrize("name", ["manifest.json", "decoder_model_fixed.img"])
def test_a_directory_of_a_newer_version(
    dielet: Dielet, checkpoint: Path, tmp_path: Path, name: str
) -> None:
    import hashlib
    import json

    folder = tmp_path / "m"
    assert dielet("compile", checkpoint, "-o", folder, *SMALL).code == 0
    manifest = json.loads((folder / "manifest.json").read_bytes())
    if name == "manifest.json":
        manifest["schema"] += 1
        manifest["something_new"] = {"a": 1}
    else:
        data = bytearray((folder / name).read_bytes())
        data[8] += 1  # the container's version
        (folder / name).write_bytes(data)
        manifest["files"][name]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    ended = dielet("run", folder, "-p", "hi")
    assert_one_line(ended)
    assert str(folder / name) in ended.err
    assert f"schema {SCHEMA + 1}" in ended.err or "version 2" in ended.err
