"""Options and fixtures that every folder of tests uses."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the code makes now into tests/golden instead of comparing with it",
    )
    parser.addoption(
        "--fuzz-inputs",
        type=int,
        help="changed files that tests/fuzz gives every reader; default: 100000, slow ones fewer",
    )


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """For a test that sends signals, to this process or a child: `nohup pytest &` ignores some,
    and children inherit that."""
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.is_file(), f"{path} is missing: run pytest --update-golden and look at it"
        assert text == path.read_text(), (
            f"{path.name} differs; if that is meant, run pytest --update-golden and review the diff"
        )

    return compare
