"""Small files that would become large, or take long, by what they claim or how they are packed."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from dielet.checkpoint.config import Entries
from dielet.checkpoint.gguf_tokenizer import tokenizer_json
from dielet.errors import DieletError
from dielet.profiler import perfetto as p
from tests.fuzz.checkpoints import CONFIGS, small_config
from tests.fuzz.mutate import fuzz
from tests.fuzz.readers import READERS
from tests.fuzz.texts import packed
from tests.fuzz.traces import TRACES

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]


def only(name: str, data: bytes) -> None:
    """One input, in the worker in which time and memory are bounded."""
    ready = READERS[name].make()
    found = fuzz(lambda _: ready.read(data), ready.samples, 1)
    assert not found.failures, found.failures[0].what


def compressed(content: bytes) -> bytes:
    return p.packet(p.text(p.COMPRESSED, zlib.compress(content, 9)))


INSIDE = {
    "zeros": bytes(60_000_000),
    "empty packets": b"\x0a\x00" * 30_000_000,
    "short packets": b"\x0a\x02\x50\x01" * 5_000_000,
    "as many empty packets as are read": b"\x0a\x00" * 500_000,
    "events": TRACES[1] * 1_000,
}


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("name", ["trace", "table"])
def test_traces(name: str, inside: str) -> None:
    only(name, TRACES[0] + compressed(INSIDE[inside]))


@pytest.mark.parametrize("name", ["trace", "table"])
def test_traces_that_are_packed_twice(name: str) -> None:
    only(name, packed(packed(TRACES[0])))
    only(name, compressed(compressed(b"\x0a\x00" * 10_000_000) * 1000))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**12},
        {"num_hidden_layers": 2**62, "model_type": "gemma3_text"},
        {"num_hidden_layers": 10**12, "model_type": "smollm3"},
        {"num_hidden_layers": 10**12, "model_type": "qwen3_moe"},
        {"num_hidden_layers": 10**12, "model_type": "phi3", "sliding_window": 5},
        {"hidden_size": 10**400, "model_type": "gemma3_text"},
        {"head_dim": 10**400, "partial_rotary_factor": 0.5, "model_type": "phi3"},
        {"vocab_size": 10**18},
        {"max_position_embeddings": 10**400, "rope_scaling": {"rope_type": "yarn", "factor": 2}},
    ],
)
def test_configurations(changes: dict[str, object]) -> None:
    only("config", json.dumps(small_config(**{**CONFIGS[0], **changes})).encode())


def test_gguf_of_many_layers() -> None:
    data = READERS["gguf"].make().samples[2]
    at = data.index(b"llama.block_count") + len(b"llama.block_count")
    assert data[at : at + 8] == struct.pack("<II", 4, 1)
    only("gguf", data[:at] + struct.pack("<II", 4, 0xFFFFFFFF) + data[at + 8 :])
    for family in (b"gemma3", b"phi3\0\0"):
        only("gguf", data.replace(b"llama", family[:5]))


def test_a_token_that_is_cut_everywhere() -> None:
    tokens = ["a", "a" * 60_000]
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 1], "tokenizer.ggml.scores": [0.0, 1.0],
    }  # fmt: skip
    with pytest.raises(DieletError, match="60000 characters"):
        tokenizer_json(Entries("file", metadata))


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{{ 'a' * 16777216 }}{{ ('a' * 16777216) | replace('a', 'bbbbbbbb') }}",
        "{{ [[[0] * 4000] * 4000] * 1000 }}",
        "{{ [[[0] * 4000] * 4000] * 1000 | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x == [ns.x] }}{{ ns.x }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
        "{% endfor %}{{ {ns.x: 1} }}",
        "{% for m in messages recursive %}{{ loop(messages * 9) }}{% endfor %}",
        "{{ messages" + " | tojson" * 300 + " }}",
        "{{ 'a'.__class__ }}", "{{ 99999 ** 99999 ** 99999 }}", "{{ '%0*d' % (99999999, 1) }}",
        "{{ ('a' * 9999) | urlize }}{{ ('<' * 999999) | striptags }}",
        "{{ ('a ' * 4000000) | title | wordwrap(1) }}", "{{ 'x' | indent(9999999) }}",
        "{{ (['a'] * 1000000) | join(',') | length }}", "{{ range(100000) | list | tojson }}",
        "{{ ('a' * 100000).split('a') | map('upper') | join('x' * 9999) }}",
    ],
)  # fmt: skip
def test_templates(text: str) -> None:
    only("template", text.encode())
