"""A tiny model to profile, and the check that no test leaves a session behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dielet
from dielet import profiling
from dielet.generate.session import Model
from dielet.profiler import session as sessions
from tests.profiler.talking import talking


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talking(tmp_path_factory.mktemp("model") / "m", chiplets=2, weights="int8",
                   batch_sizes=(1, 3))  # fmt: skip


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with dielet.load(folder, threads=2) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def nothing_left_running() -> Iterator[None]:
    yield
    assert sessions._running is None
    assert profiling.listener is None and profiling.on_load is None
    assert all(runtime.observer is None for runtime in profiling.runtimes)
