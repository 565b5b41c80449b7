"""Changed files give a value or one line of dielet's own: no traceback, hang, or much memory.

`pytest -m fuzz --fuzz-inputs 100000` gives slow readers as many as the others.  What fails is
printed in hexadecimal digits; `python -m tests.fuzz.mutate READER HEX` reads it again.
"""

from __future__ import annotations

import pytest

from tests.fuzz.mutate import fuzz
from tests.fuzz.readers import READERS

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]


@pytest.mark.parametrize("name", READERS)
def test_changed_bytes(name: str, request: pytest.FixtureRequest) -> None:
    reader = READERS[name]
    ready = reader.make()
    for sample in ready.samples:
        ready.read(sample)  # what is changed was right before
    count = request.config.getoption("--fuzz-inputs") or reader.usual
    found = fuzz(ready.read, ready.samples, count, reader.words, reader.errors)
    assert not found.failures, "\n".join(map(str, found.failures))
    # Otherwise nothing but the first lines of the reader was seen.
    assert found.values > count // 200, f"{found.values} of {count} inputs gave a value"
