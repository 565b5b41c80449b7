"""What the tokenizers library reports of its own panics stays away; all else on stderr stays."""

from __future__ import annotations

import json
import os
import threading

import pytest
import tokenizers

from dielet.errors import DamagedFile
from dielet.generate.panics import panics_caught
from dielet.generate.text import Text

PLAIN = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).to_str())
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


def test_a_pattern_without_an_end_is_one_line_and_no_report(capfd) -> None:
    """More steps back than the library takes are a panic, with a backtrace if the user has asked
    for those of other programs."""
    pattern = {**SPLIT, "pattern": {"Regex": "(a+)+$"}}
    text = Text.of({"tokenizer.json": json.dumps({**PLAIN, "pre_tokenizer": pattern}).encode()}, "")
    assert text.encode("ab", False) == [0, 1]
    with pytest.raises(DamagedFile, match=r"tokenizer\.json: not a usable .* retry-limit"):
        text.encode("a" * 40 + "b", False)
    assert capfd.readouterr().err == ""


def test_what_others_write_meanwhile_is_kept(capfd) -> None:
    with panics_caught("x"):
        os.write(2, b"of another thread\n")
    assert capfd.readouterr().err == "of another thread\n"
    with pytest.raises(KeyError), panics_caught("x"):
        os.write(2, b"before an error\n")
        raise KeyError
    assert capfd.readouterr().err == "before an error\n"


def test_nothing_is_kept_open(capfd) -> None:
    with panics_caught("x"):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with panics_caught("x"):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_threads_do_not_take_stderr_from_each_other(capfd) -> None:
    def often() -> None:
        for _ in range(200):
            with panics_caught("x"):
                pass

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"still here\n")
    assert capfd.readouterr().err == "still here\n"
