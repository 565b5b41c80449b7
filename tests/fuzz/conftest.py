"""What the readers remember goes into a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.mutate import scratch


@pytest.fixture(scope="package", autouse=True)
def own_cache() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(scratch()))
        yield
