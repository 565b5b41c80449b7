"""Models that are made, compiled and scored once for the tests of a folder, then freed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.numbers.models import SmolLM2, Tiny


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    models = Tiny(tmp_path_factory.mktemp("tiny"))
    yield models
    models.close()


@pytest.fixture(scope="package")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmolLM2]:
    models = SmolLM2(tmp_path_factory.mktemp("smollm2"))
    yield models
    models.close()
