"""Files that are right but for some values: each gives a value or one line of dielet's own."""

from __future__ import annotations

import hashlib
import json
import signal
import struct
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dielet.analysis.window import parse_window
from dielet.checkpoint.config import Entries
from dielet.checkpoint.gguf_tokenizer import end_of_text_ids, tokenizer_json
from dielet.cli.analyze import _factors
from dielet.errors import DieletError
from dielet.generate.session import check_options
from dielet.generate.template import ChatTemplate
from dielet.image import CompileOptions
from dielet.image.options import CompileOptions as Options
from dielet.profiler import perfetto as p
from dielet.profiler.wire import number, text
from tests.fuzz.checkpoints import (
    CONFIGS,
    GENERATION,
    MESSAGES,
    TEMPLATES,
    TOKENIZER_CONFIG,
    TOKENIZERS,
)
from tests.fuzz.directories import small_programs
from tests.fuzz.mutate import SECONDS, complaint
from tests.fuzz.reader import Ready
from tests.fuzz.readers import READERS
from tests.fuzz.texts import DEVICE
from tests.fuzz.trees import LEAVES, VALUES, changed, toml

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]
quickly = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@cache
def ready(name: str) -> Ready:
    return READERS[name].make()


class TooSlow(BaseException):
    """Beyond what any reader may take, so that nothing takes it for an error of its own."""


@contextmanager
def bounded() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check(read: Callable[[], object]) -> None:
    try:
        with bounded():
            read()
    except DieletError as error:
        assert not complaint(error)


def dumped(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")


@cache
def sample(name: str) -> Any:
    return json.loads(ready(name).samples[0])


@cache
def programs() -> list[Any]:
    return [msgspec.to_builtins(program) for program in small_programs().values()]


HEADER = {
    "a": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
    "b": {"dtype": "F16", "shape": [3], "data_offsets": [32, 38]},
    "__metadata__": {"format": "pt"},
}
JSON_FILES: dict[str, tuple[list[Any], tuple[str, ...]]] = {  # no trees: the reader's sample
    "config": (list(CONFIGS), ("rope_scaling", "rope_parameters", "text_config", "head_dim")),
    "tokenizer.json": (list(TOKENIZERS), ()),
    "tokenizer_config": ([TOKENIZER_CONFIG], ("model_specific_special_tokens",)),
    "generation_config": ([GENERATION], ()),
    "manifest": ([], ()),
    "rbln_config": ([], ("sliding_window_layers", "kvcache_partition_len", "phases")),
    "verified": ([{"decoder_model_fixed.img": "1 2 3"}], ()),
    "hub": ([], ("private", "gated", "lfs")),
    "accuracy": ([], ()),
}


@pytest.mark.parametrize("name", JSON_FILES)
@given(data=st.data())
@quickly
def test_json(name: str, data: st.DataObject) -> None:
    trees, more = JSON_FILES[name]
    tree = data.draw(changed(trees or [sample(name)], more))
    check(lambda: ready(name).read(dumped(tree)))


@given(changed([HEADER]), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 1 << 64)))
@quickly
def test_safetensors_headers(tree: Any, size: int, stated: int | None) -> None:
    header = dumped(tree)
    length = (len(header) if stated is None else stated) % (1 << 64)
    data = length.to_bytes(8, "little") + header + bytes(size)
    check(lambda: ready("safetensors").read(data))


def parts(name: str, begin: int) -> tuple[Any, bytes]:
    """Of a reader's first sample: the JSON whose length, 8 bytes, ends at `begin` or stands before
    a hash that does, and what follows it."""
    data = ready(name).samples[0]
    place = begin - (40 if name == "prompt_cache" else 8)
    length = int.from_bytes(data[place : place + 8], "little")
    return json.loads(data[begin : begin + length]), data[begin + length :]


@given(st.data(), st.integers(0, 8))
@quickly
def test_weights_of_a_quantised_directory(data: st.DataObject, cut: int) -> None:
    header, weights = parts("weights", 8)
    text = dumped(data.draw(changed([header])))
    whole = len(text).to_bytes(8, "little") + text + weights[: len(weights) - cut]
    check(lambda: ready("weights").read(whole))


@given(st.data())
@quickly
def test_tables_of_images(data: st.DataObject) -> None:
    table, rest = parts("image", 20)
    text = dumped(data.draw(changed([table])))
    head = ready("image").samples[0][:12]
    check(lambda: ready("image").read(head + len(text).to_bytes(8, "little") + text + rest))


@given(st.data())
@quickly
def test_headers_of_prompt_caches(data: st.DataObject) -> None:
    header, panels = parts("prompt_cache", 52)
    text = dumped(data.draw(changed([header])))
    head = ready("prompt_cache").samples[0][:12] + len(text).to_bytes(8, "little")
    check(lambda: ready("prompt_cache").read(head + hashlib.sha256(text).digest() + text + panels))


NPY = {"descr": [["q", "|u1", [4, 4]], ["scale", "<f2", [4]]], "fortran_order": False,
       "shape": [1, 2]}  # fmt: skip


@given(changed([NPY], ("x",)), st.integers(0, 1 << 16))
@quickly
def test_headers_of_arrays(tree: Any, length: int) -> None:
    """numpy reads a header as Python: lists become the tuples that it wants."""
    text = repr(tree).replace("[", "(").replace("]", ",)").encode("utf-8", "replace") + b"\n"
    for stated in (len(text) % (1 << 16), length):
        data = b"\x93NUMPY\x01\x00" + stated.to_bytes(2, "little") + text + bytes(48)
        check(lambda data=data: ready("npy").read(data))


_FIELDS = st.one_of(
    st.none(), st.integers(0, 2**64 - 1), st.text(max_size=5), st.binary(max_size=9)
)


@given(st.lists(st.tuples(st.integers(1, 70), _FIELDS, st.booleans()), max_size=9), st.booleans())
@quickly
def test_packets_of_traces(fields: list[tuple[int, Any, bool]], event: bool) -> None:
    """Fields of any number and kind where a packet's stand, alone and inside of an event."""
    body = b""
    for key, value, _ in fields:
        body += number(key, value) if isinstance(value, int) else text(key, value or b"")
    inside = number(p.TIMESTAMP, 5) + (text(p.TRACK_EVENT, body) if event else body)
    for name in ("trace", "trace-packed", "table"):
        check(lambda name=name: ready(name).read(ready("trace").samples[0] + p.stateful(inside)))


_GGUF_KINDS = (("I", 4), ("i", 5), ("f", 6), ("?", 7), ("Q", 10), ("d", 12))


def gguf_value(value: Any, kind: int) -> tuple[int, bytes]:
    """The number of a value's type, and its bytes, in a GGUF file."""
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return 8, struct.pack("<Q", len(raw)) + raw
    if isinstance(value, list):
        made = [gguf_value(each, kind) for each in value]
        inner = made[0][0] if made else 4
        return 9, struct.pack("<IQ", inner, len(made)) + b"".join(data for _, data in made)
    form, number_ = _GGUF_KINDS[kind]
    try:
        return number_, struct.pack(f"<{form}", value)
    except (struct.error, OverflowError, TypeError):
        return 10, struct.pack("<Q", hash(str(value)) % 2**64)


GGUF = {
    "general.architecture": "llama", "general.alignment": 32, "llama.block_count": 1,
    "llama.embedding_length": 32, "llama.attention.head_count": 1, "llama.vocab_size": 12,
    "llama.feed_forward_length": 32, "llama.context_length": 128, "split.count": 1, "split.no": 0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4,
    "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.token_type": [1, 1, 1], "tokenizer.ggml.merges": ["a b"],
}  # fmt: skip
TENSORS = [{"name": name, "shape": [32, 32], "type": 8, "offset": 0}
           for name in ("token_embd.weight", "blk.0.attn_q.weight")]  # fmt: skip


@given(changed([{"metadata": GGUF, "tensors": TENSORS}]), st.integers(0, len(_GGUF_KINDS) - 1))
@quickly
def test_gguf_files(tree: Any, kind: int) -> None:
    metadata, tensors = tree.get("metadata"), tree.get("tensors")
    metadata = metadata if isinstance(metadata, dict) else {}
    tensors = [t for t in tensors if isinstance(t, dict)] if isinstance(tensors, list) else []
    data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        number_, raw = gguf_value(value, kind)
        data += gguf_value(str(key), 0)[1] + struct.pack("<I", number_) + raw
    for tensor in tensors:
        sizes = [n % 2**64 for n in _list(tensor.get("shape")) if isinstance(n, int)]
        kind_, place = (n if isinstance(n := tensor.get(key), int) else 0
                        for key in ("type", "offset"))  # fmt: skip
        data += gguf_value(str(tensor.get("name")), 0)[1]
        data += struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind_ % 2**32, place % 2**64)
    check(lambda: ready("gguf").read(data + bytes(-len(data) % 32) + bytes(2048)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


TOML_FILES: dict[str, dict[str, Any]] = {
    "device": tomllib.loads(DEVICE),
    "calibrated": tomllib.loads(DEVICE),
    "roles": {
        "like": "llama", "config": {"hidden_size": "n_embd"}, "values": {"vocab_size": 12},
        "tensors": {"model.layers.{layer}.mlp.up_proj.weight": "h.{layer}.up"}, "ignore": ["x"],
    },
    "budget": {
        "ttft_ms_max": 10, "complete": True, "busy_min": {"Neural DMA": 0.5},
        "forbidden_findings": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TOML_FILES)
@given(data=st.data())
@quickly
def test_toml(name: str, data: st.DataObject) -> None:
    tree = data.draw(changed([TOML_FILES[name]], ("links", "spaces", "launch", "rates")))
    text = toml(tree).encode("utf-8", "surrogatepass")
    check(lambda: ready(name).read(text))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["chiplets", "memory.dram.bandwidth", "engine.core.peak.int8", "launch",
                             "name", "spaces.kv", "engine", "engine.core.commands", ""]),
            st.one_of(st.sampled_from(["x2", "x0.5", "4", "1 us", "2 GB/s"]), st.text(max_size=8),
                      LEAVES.map(lambda value: f"x{value}"), LEAVES.map(str)),
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
@quickly
def test_overrides(changes: list[tuple[str, str]]) -> None:
    text = ";".join(f"{path}={value}" for path, value in changes)
    check(lambda: ready("overrides").read(text.encode("utf-8", "replace")))


@given(data=st.data())
@quickly
def test_programs(data: st.DataObject) -> None:
    tree = data.draw(changed(programs()))
    try:
        content = msgspec.msgpack.encode(tree)
    except OverflowError:
        return  # a number that msgpack has no form for
    check(lambda: ready("program").read(content))


@given(changed([{**GENERATION, "stop": ["a"], "max_new_tokens": 5, "seed": 1, "raw": True}],
               ("system", "thinking", "speculate")))  # fmt: skip
@quickly
def test_options_of_an_answer(options: Any) -> None:
    check(lambda: check_options(options))


FIELDS = {"weights": "int8", "group": 32, "max_seq_len": 128, "chiplets": 2, "batch_sizes": (1, 2)}


@given(
    st.dictionaries(
        st.sampled_from([*Options.__dataclass_fields__, "x"]),
        st.one_of(LEAVES, st.lists(LEAVES, max_size=3).map(tuple)),
        max_size=4,
    )
)
@quickly
def test_options_of_a_compilation(options: dict[str, Any]) -> None:
    check(lambda: CompileOptions.of(**{**FIELDS, **options}))


@given(
    st.one_of(st.text(max_size=9), LEAVES.map(lambda v: f"{v}:1"), LEAVES.map(lambda v: f":{v}"))
)
@quickly
def test_windows_and_factors(text: str) -> None:
    check(lambda: parse_window(text))
    check(lambda: _factors([text.replace(":", "=")]))


@given(changed([list(MESSAGES), [{"role": "assistant", "content": [{"type": "text", "text": "a"}],
                                  "reasoning": "b", "tool_calls": [{"id": 1}]}]]),
       st.sampled_from(TEMPLATES))  # fmt: skip
@quickly
def test_messages(messages: Any, template: str) -> None:
    check(lambda: ChatTemplate(template, "t", {"eos_token": "</s>"}).render(messages))


_WORDS = st.recursive(
    st.sampled_from(["{{ m.content }}", "{{ loop.index }}", "x", "{% break %}", "{{ ns.x }}",
                     "{{ ('a' * 9999) }}", "{{ 9 ** 999 }}", "{% set ns.x = ns.x ~ ns.x %}",
                     "{{ messages | tojson(indent=9999) }}", "{{ '%9999d' % 1 }}",
                     "{{ messages | map('upper') | list }}", "{{ [1] * 99999 }}", "{{ f(f) }}",
                     "{{ raise_exception(m) }}", "{{ ''.join(messages) }}", "{{ range(9) | sum }}",
                     "{{ m | attr('role') }}", "{{ dict(m) }}", "{{ m.role.split('') }}"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        inner.map(lambda t: "{% for m in messages %}" + t + "{% endfor %}"),
        inner.map(lambda t: "{% for i in range(9999) %}" + t + "{% endfor %}"),
        inner.map(lambda t: "{% if m %}" + t + "{% endif %}"),
        inner.map(lambda t: "{% set x %}" + t + "{% endset %}{{ x ~ x }}"),
        inner.map(lambda t: "{% macro f(m) %}" + t + "{{ f(m) }}{% endmacro %}{{ f(1) }}"),
        inner.map(lambda t: "{% for m in messages recursive %}{{ loop(messages) }}" + t +
                  "{% endfor %}"),
        inner.map(lambda t: "{% filter upper %}" + t + "{% endfilter %}"),
    ),
    max_leaves=5,
)  # fmt: skip


@given(_WORDS)
@settings(quickly, max_examples=60)
def test_templates(text: str) -> None:
    whole = "{% set ns = namespace(x='abc') %}" + text
    check(lambda: ChatTemplate(whole, "t", {"eos_token": "</s>"}).render(MESSAGES))


_METADATA = {
    "tokenizer.ggml.tokens": ["a", "b", "ab", "▁", "<s>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 3],
    "tokenizer.ggml.bos_token_id": 4,
}
TOKENIZER_METADATA = [
    {**_METADATA, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"],
     "tokenizer.ggml.pre": "qwen2"},
    {**_METADATA, "tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, 0.5,
                                                                             0.0],
     "tokenizer.ggml.add_space_prefix": True, "tokenizer.ggml.unknown_token_id": 0},
]  # fmt: skip


@given(changed(TOKENIZER_METADATA, ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.eos_token_id")))
@quickly
def test_gguf_tokenizers(metadata: Any) -> None:
    entries = Entries("file", metadata)
    check(lambda: (tokenizer_json(entries), end_of_text_ids(entries)))


@given(VALUES)
@quickly
def test_any_json_at_all(value: Any) -> None:
    for name in JSON_FILES:
        check(lambda name=name: ready(name).read(dumped(value)))
