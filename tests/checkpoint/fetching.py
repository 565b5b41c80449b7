"""Ask for the model of a test of the hub, and what is said when it is not to be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from dielet.checkpoint.hub import from_hub
from dielet.checkpoint.hub_wanted import HubName, Wanted
from dielet.errors import DieletError, MissingFile

NAME = "some/model"


def fetched() -> Path:
    return from_hub(Wanted(HubName(NAME)))


def complaint(error: type[DieletError] = MissingFile) -> str:
    with pytest.raises(error) as seen:
        fetched()
    assert "\n" not in str(seen.value)
    return str(seen.value)
