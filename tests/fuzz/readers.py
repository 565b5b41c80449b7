"""Every reader of what others wrote: how it is given bytes, and small files that it can read."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from safetensors.numpy import save

from dielet.checkpoint.config import Entries, config_json
from dielet.checkpoint.gguf import GgufCheckpoint
from dielet.checkpoint.hugging_face import directory_files, directory_spec
from dielet.checkpoint.names import tensor_shapes
from dielet.checkpoint.roles import read_roles
from dielet.checkpoint.rope import angles
from dielet.checkpoint.safetensors import SafetensorsFile
from dielet.checkpoint.spec import ModelSpec
from dielet.checkpoint.special_tokens import special_tokens
from dielet.codegen import cache
from dielet.codegen.flat import Flat, NotFlat, flatten
from dielet.codegen.library import _read as read_kernel
from dielet.devices import load_device, read_device
from dielet.devices.override import overridden
from dielet.errors import DamagedFile, DieletError
from dielet.generate.sampling import from_generation_config
from dielet.generate.template import ChatTemplate
from dielet.generate.text import GENERATION_CONFIG, TOKENIZER, Text, json_object
from dielet.generate.text import TOKENIZER_CONFIG as TOKENIZER_CONFIG_FILE
from dielet.host.tables import kernel_key
from dielet.image import open_directory
from dielet.image.directory import _npy_bytes
from dielet.image.file import HashingWriter, open_image, write_image
from dielet.image.manifest import NAME, check_files, read_manifest
from dielet.profiler import perfetto as p
from dielet.profiler.reader import read_trace
from dielet.program import KvLayout, Program, WeightPlan, verify_program
from dielet.simulator.sweep import parse_settings
from tests.fuzz.mutate import rewritten, scratch
from tests.fuzz.traces import TRACES

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Ready:
    """A reader with files to change, and where it keeps the one that it is given."""

    read: Read
    samples: tuple[bytes, ...]


@dataclass(frozen=True)
class Reader:
    """words: of its format, to be put anywhere.  errors: those that it may raise.

    usual: inputs that it is given if nobody says how many; fewer where each takes long.
    """

    make: Callable[[], Ready]
    words: tuple[bytes, ...] = ()
    errors: tuple[type[BaseException], ...] = (DieletError,)
    usual: int = 100_000


SMALL = ModelSpec(
    model_type="llama", hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32,
    vocab=12, norm_eps=1e-5, rope_theta=1e4, max_position=128, tied=False, qk_norm=False,
)  # fmt: skip
QUOTED = tuple(f'"{word}"'.encode() for word in (
    "model_type", "gemma3_text", "qwen3_moe", "smollm3", "phi3", "rope_scaling", "rope_type",
    "longrope", "yarn", "dynamic", "llama3", "factor", "text_config", "layer_types",
))  # fmt: skip


def _file(read: Callable[[Path], object], name: str) -> Read:
    """A reader of a file as one of bytes."""
    path = scratch() / name
    return lambda data: read(rewritten(path, data))


# Checkpoints


def _safetensors() -> Ready:
    def read(path: Path) -> None:
        file = SafetensorsFile(path)
        for name, shape in file.shapes.items():
            tensor = file.tensor(name)
            if 0 < len(shape) <= 2 and 0 < tensor.N * tensor.K < 1 << 20:
                tensor.rows(0, 1)

    one = {"a": np.ones((2, 4), np.float32), "b.weight": np.zeros((3,), np.float16)}
    two = save({"a": np.ones((2, 2), np.float32)}, metadata={"format": "pt"})
    return Ready(_file(read, "model.safetensors"), (save(one), two, save({})))


def small_config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json of a tiny model."""
    entries: dict[str, Any] = json.loads(config_json(SMALL))
    return {**entries, "model_type": model_type, **changes}


CONFIGS = tuple(
    small_config(**changes)
    for changes in (
        {},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 64}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "model_type": "mistral"},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
        {"model_type": "phi3", "rope_scaling": {
            "type": "longrope", "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
         "original_max_position_embeddings": 64},
        {"model_type": "gemma3_text", "layer_types": ["sliding_attention"],
         "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4},
        {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
         "moe_intermediate_size": 32, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
        {"model_type": "smollm3", "no_rope_layers": [0], "no_rope_layer_interval": 4},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0,
         "sliding_window": 16},
        {"model_type": "qwen3", "text_config": small_config("qwen3")},
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                 "desc_act": False, "sym": True}},
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32,
                                 "version": "gemm", "zero_point": True}},
        {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
                                 "weight_block_size": [128, 128]}},
    )
)  # fmt: skip


def use_spec(spec: ModelSpec) -> None:
    """What every user of a spec asks it for."""
    if spec.layers <= 4:
        tensor_shapes(spec)
    spec.rotary_frequencies()
    angles(spec.turned, spec.rope_theta, spec.rope_scaling, 32)
    config_json(spec)


def _config() -> Ready:
    def read(path: Path) -> None:
        use_spec(directory_spec(path.parent))

    samples = tuple(json.dumps(config).encode() for config in CONFIGS)
    return Ready(_file(read, "config.json"), samples)


def _beside_config(name: str, samples: Sequence[object]) -> Ready:
    """A file of a Hugging Face directory whose other files are fine."""
    folder = scratch()
    (folder / "config.json").write_text(json.dumps(CONFIGS[0]))

    def read(data: bytes) -> None:
        rewritten(folder / name, data)
        directory_spec(folder)
        files = directory_files(folder)
        special_tokens(json_object(files, TOKENIZER_CONFIG_FILE, ""), "")
        config = json_object(files, GENERATION_CONFIG, "")
        from_generation_config(config, GENERATION_CONFIG)

    return Ready(read, tuple(json.dumps(sample).encode() for sample in samples))


MESSAGES = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
TEMPLATES = (
    "{% for m in messages %}{{ m.role }}: {{ m.content|trim }}{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{%- for m in messages[::-1] -%}{%- if loop.first -%}"
    "{{- raise_exception('no') if m.role == 'x' else m['content'] + eos_token -}}{%- endif -%}"
    "{%- set ns.n = ns.n + 1 -%}{%- endfor -%}{{ ns.n }}",
    "{% macro f(x) %}{{ x * 3 }}{% endmacro %}{{ f('a') }}{{ messages|tojson }}{{ '%3s' % 1 }}",
    "{{ strftime_now('%d') }}{% if tools %}{{ tools }}{% else %}{{ 'a'.center(9) }}{% endif %}",
)
TEMPLATE_WORDS = (
    b"{% for i in range(99999) %}", b"{% endfor %}", b"{{", b"}}", b"{%", b"%}", b"messages",
    b"|join", b"|batch(3)", b"*999999", b"**999", b"{% set x = x ~ x %}", b"{% include 'a' %}",
    b"{{ self }}", b"__class__", b".format(", b"%9999s", b"|indent(999)", b"loop", b"namespace",
    b"{% generation %}", b"|sort", b"|replace('a','aa')", b"('a'*99999)", b"{# ", b"recursive",
)  # fmt: skip


def _template() -> Ready:
    def read(data: bytes) -> None:
        ChatTemplate(data.decode(errors="replace"), "t", {"eos_token": "</s>"}).render(MESSAGES)

    return Ready(read, tuple(template.encode() for template in TEMPLATES))


def _tokenizer(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    added = {"id": 5, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}  # fmt: skip
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
            "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": model, **parts}  # fmt: skip


_VOCAB = {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "▁": 4}
TOKENIZERS = (
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": [["a", "b"]], "byte_fallback": False},
        pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    ),
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": ["a b"], "unk_token": "a", "fuse_unk": True},
        normalizer={"type": "Prepend", "prepend": "▁"},
        decoder={"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    ),
    _tokenizer(
        {"type": "BPE", "vocab": _VOCAB, "merges": []},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{N}|[ab]+"}, "behavior": "Isolated",
             "invert": False}]},
        post_processor={"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
    ),
)  # fmt: skip
TOKENIZER_CONFIG = {
    "eos_token": {"content": "<s>"}, "bos_token": "a", "add_bos_token": True,
    "added_tokens_decoder": {"5": {"content": "<s>", "special": True}},
    "chat_template": [{"name": "default", "template": TEMPLATES[0]}],
    "extra_special_tokens": {"boi_token": "b"},
}  # fmt: skip
GENERATION = {
    "eos_token_id": [2, 3], "bos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_k": 20,
    "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.1,
}  # fmt: skip


def use_tokenizer(data: bytes) -> None:
    text = Text.of({TOKENIZER: data}, "")
    if len(data) < 1 << 14:
        ids = text.encode("ab ba <s>", True)
        text.decode(ids)
        pieces = text.detokenizer()
        for token in [*ids[:8], 3]:
            pieces.push(token)
        pieces.finish()


def _tokenizer_json() -> Ready:
    samples = tuple(json.dumps(t, ensure_ascii=False).encode() for t in TOKENIZERS)
    return Ready(use_tokenizer, samples)


def _hub() -> Ready:
    """What a hub answers when it is asked which files a model has."""
    from dielet.checkpoint.hub_client import HubClient
    from dielet.checkpoint.hub_settings import hub_settings

    class Answer(BytesIO):
        status = 200

    client = HubClient(hub_settings(), "a/b")

    def read(data: bytes) -> None:
        client._get = lambda *_: (Answer(data), {})  # type: ignore[method-assign,assignment]
        client.listing("main")

    file = {"rfilename": "x/model.safetensors", "size": 5, "blobId": "e5", "lfs": {"sha256": "ab"}}
    listing = {"sha": "0123456789" * 4, "siblings": [file, {"rfilename": "config.json"}]}
    return Ready(read, (json.dumps(listing).encode(),))


# GGUF


def small_gguf(folder: Path) -> tuple[bytes, ...]:
    """Files as the reference package writes them: with either kind of tokenizer, and none."""
    from tests.checkpoint.make import gguf_file, weights

    byte_level = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*"abcdefgh", "ab", "Ġ", "<s>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 10 + [3, 3], "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 10, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATES[0],
    }  # fmt: skip
    pieces = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [*"abcdefgh", "ab", "▁", "<s>",
                                                                   "<0x41>"],
        "tokenizer.ggml.token_type": [1] * 10 + [3, 6],
        "tokenizer.ggml.scores": [-float(n) for n in range(12)],
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    made = []
    for metadata in (byte_level, pieces, {}):
        path = folder / "made.gguf"
        path.unlink(missing_ok=True)
        gguf_file(path, SMALL, weights(SMALL), "Q8_0", metadata)
        made.append(path.read_bytes())
    return tuple(made)


GGUF_WORDS = (
    b"llama", b"general.architecture", b"gemma3", b"llama.rope.scaling.type", b"rope_freqs.weight",
    b"general.alignment", b"\x08\x00\x00\x00", b"\x09\x00\x00\x00", b"\x04\x00\x00\x00",
    b"\x0a\x00\x00\x00",
)  # fmt: skip


def _gguf() -> Ready:
    def read(path: Path) -> None:
        checkpoint = GgufCheckpoint(path)
        use_spec(checkpoint.spec)
        checkpoint.tokenizer_files()
        for name in checkpoint.names()[:2]:
            tensor = checkpoint.tensor(name)
            tensor.rows(0, min(tensor.N, 2))

    samples = small_gguf(scratch())
    return Ready(_file(read, "model.gguf"), samples)


# Model directories


def small_model() -> Path:
    from tests.models import compiled

    folder = scratch() / "m"
    spec = msgspec.structs.replace(SMALL, tied=True)
    return compiled(folder, spec, max_seq_len=32, kv_ladder=(32,)).path


def _manifest() -> Ready:
    model = small_model()
    path = model / NAME
    sample = json.dumps(json.loads(path.read_bytes())).encode()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        manifest = read_manifest(model)
        if len(manifest.files) < 20:
            check_files(model, manifest)

    return Ready(read, (sample, path.read_bytes()))


MANIFEST_WORDS = (
    b'"layers"',
    b'"max_seq_len"',
    b'"files"',
    b'"../x":',
    b'"a\\u0000b":',
    b'"eos_ids"',
)


def small_programs() -> dict[str, Program]:
    """The programs of a model of one layer."""
    files = open_directory(small_model())
    return {name: files.program(name) for name in ("head_1", "decode_1_kv32")}


def _program() -> Ready:
    files = open_directory(small_model())
    kv = KvLayout.of(files.manifest.spec, files.manifest.max_seq_len).nbytes
    head, others = (files.activation_spaces(is_head) for is_head in (True, False))

    def read(data: bytes) -> None:
        """What is done with a program that was loaded, before it may run."""
        try:
            program = msgspec.msgpack.decode(data, type=Program)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise DamagedFile("as `Image.program` does it") from None
        allocated = head if program.phase == "head" else others
        verify_program(program, {**allocated, **files.sizes(), "kv": kv})
        for command in program.commands:
            kernel_key(command)

    return Ready(read, tuple(map(msgspec.msgpack.encode, small_programs().values())))


def _image() -> Ready:
    programs = tuple(small_programs().values())

    def read(path: Path) -> None:
        image = open_image(path)
        for entry in image.table.programs[:4]:
            image.program(entry.name)

    def made(count: int) -> bytes:
        out = BytesIO()
        write_image(HashingWriter(out), WeightPlan("weights", (), 64), programs[:count], iter(()))
        return out.getvalue()

    return Ready(_file(read, "decoder.img"), (made(1), made(2), made(0)))


def _npy() -> Ready:
    dtype, shape = np.dtype([("q", "u1", (4, 4)), ("scale", "<f2", (4,))]), (1, 2)

    def made(array: np.ndarray[Any, Any]) -> bytes:
        out = BytesIO()
        np.save(out, array)
        return out.getvalue()

    read = _file(lambda path: _npy_bytes(path, dtype, shape), "cos.npy")
    return Ready(read, (made(np.zeros(shape, dtype)),))


NPY_WORDS = (
    b"'descr'", b"'shape'", b"'<f4'", b"'O'", b"('<f4', (2,))", b"[('a', '<f4')]", b"(" * 200,
    b"-" * 200, b"{" * 100, b"'\\x00'", b"True", b"9999999999999999999", b"'V9'", b"lambda: 0",
)  # fmt: skip


# What dielet keeps for itself


def _kernels() -> Ready:
    folder = scratch()
    codes = (
        msgspec.msgpack.encode(Flat(b"\xc3" * 70, {"dielet_a": 0, "b": 64})),
        msgspec.msgpack.encode(b"\x7fELF not quite"),
    )

    def whole(code: bytes) -> bytes:
        return cache.MAGIC + hashlib.sha256(code).digest() + code

    def read(data: bytes) -> None:
        # An entry with another content than was written, and one whose hash is right all the same.
        for content in (data, whole(data[40:])):
            rewritten(folder / "entry.o", content)
            found = read_kernel(folder, "entry", ("dielet_a",))
            if isinstance(found, Flat):
                assert all(0 <= place < len(found.code) for place in found.symbols.values())

    return Ready(read, tuple(whole(code) for code in codes))


def _objects() -> Ready:
    from dielet.codegen.jit import emit_object
    from dielet.codegen.targets import TARGETS

    text = (
        "@t = internal constant [4 x i32] [i32 1, i32 2, i32 3, i32 4]\n"
        "define i32 @f(i64 %i) { %p = getelementptr [4 x i32], ptr @t, i64 0, i64 %i\n"
        "%v = load i32, ptr %p\n ret i32 %v }\n"
    )
    return Ready(flatten, (emit_object(text, TARGETS["avx2"]),))


def _verified() -> Ready:
    """What is remembered of files that were found right."""
    from dielet.image.manifest import _Verified

    model = small_model()
    manifest = read_manifest(model)
    manifest = msgspec.structs.replace(manifest, files=dict(list(manifest.files.items())[:2]))
    check_files(model, manifest)
    path = _Verified(model)._path
    sample = path.read_bytes()

    def read(data: bytes) -> None:
        rewritten(path, data)
        check_files(model, manifest)

    return Ready(read, (sample,))


@dataclass(frozen=True)
class _Speaker:
    """What a prompt cache is held against, of a runtime."""

    identity: str = "m"
    kv_format: str = "bf16"
    panel_bytes: int = 64
    max_seq_len: int = 128


def _prompt_cache() -> Ready:
    from dielet.generate.prompt_file import PromptFile

    path, runtime = scratch() / "kept", cast(Any, _Speaker())
    tokens = list(range(40))

    def made(count: int) -> bytes:
        path.unlink(missing_ok=True)
        PromptFile.open(path, runtime).keep(
            tokens[:count], lambda n: np.full(64, n, np.uint8), runtime
        )
        return path.read_bytes()

    def read(data: bytes) -> None:
        header = data[52 : 52 + int.from_bytes(data[12:20], "little")]
        right = data[:20] + hashlib.sha256(header).digest() + data[52:]
        for content in (data, right):  # damaged, and made by somebody who knows the form
            PromptFile.open(rewritten(path, content), runtime).prefix(tokens)

    return Ready(read, (made(40), made(1)))


# What people write


DEVICE = """name = "toy"
chiplets = 2
partition = "column"
shared_memory = "device"
[engine.core]
commands = ["linear", "rmsnorm"]
setup = "30 ns" # measured
[engine.core.peak]
int8 = "850 GOP/s" # assumed
[memory.dram]
bandwidth = "44 GB/s" # source: a page
"""
DEVICE_WORDS = (
    b'"1e999999 GB/s"', b'"NaN ns"', b'"Infinity s"', b"[[engine]]", b"[engine.core.rates]",
    b'"linear int8 1" = "1 GOP/s" # assumed\n', b"[spaces]", b"1979-05-27T07:32:00Z", b"''' ",
    b'"a\\nb" = 1\n', b"x.y.z = 1\n", b"devices = 2\n", b'launch = "1 us" # assumed\n',
    b"# assumed",
)  # fmt: skip


def _device() -> Ready:
    return Ready(_file(lambda path: load_device(str(path)), "toy.toml"), (DEVICE.encode(),))


def _overrides() -> Ready:
    device = read_device('launch = "25 us" # assumed\n' + DEVICE, "toy")

    def read(data: bytes) -> None:
        text = data.decode(errors="replace")
        settings = parse_settings(text.split(";"))
        overridden(device, {name: values[0] for name, values in settings.items()})

    samples = (
        b"memory.dram.bandwidth=0.6 TB/s", b"chiplets=4", b"engine.core.peak.int8=x0.5",
        b"memory.dram.bandwidth=x2;launch=1 us", b"engine.core.setup=x1e3", b"chiplets=x2",
        b"launch=x0.5",
    )  # fmt: skip
    return Ready(read, samples)


OVERRIDE_WORDS = (
    b"=x1e999999999", b"=xNaN", b"=xsNaN", b"x", b"=-0", b"engine", b".", b"chiplets=",
    b"=1e9999 s", b";", b",", "=²".encode(), b"=--5", b"spaces.", b"name=",
)  # fmt: skip


def _roles() -> Ready:
    sample = (
        b'like = "llama"\nignore = ["inv_freq"]\n[config]\nhidden_size = "n_embd"\n'
        b"[values]\nvocab_size = 12\n[tensors]\n"
        b'"model.layers.{layer}.mlp.up_proj.weight" = "h.{layer}.up"\n'
    )
    config = Entries("config.json", {**CONFIGS[0], "n_embd": 32})

    def read(path: Path) -> None:
        roles = read_roles(path)
        roles.entries(config)
        roles.tensor("model.layers.3.mlp.up_proj.weight")

    return Ready(_file(read, "roles.toml"), (sample,))


def _budget() -> Ready:
    from dielet.analysis.budget import read_budget

    sample = (
        b"ttft_ms_max = 10\ncomplete = true\ndram_share_min = 0.5\nforbidden_findings = []\n"
        b'[busy_min]\n"Neural DMA" = 0.5\n'
    )
    return Ready(_file(read_budget, "budget.toml"), (sample,))


TOML_WORDS = (
    b"[a]\n", b"a.b = 1\n", b"= {", b"1979-05-27", b"1e999", b"inf", b"nan", b"'''", b'"""',
    b"[[x]]\n", b"= [" + b"[" * 900, b"0x", b"= true", b'"a\\nb" = 1\n',
)  # fmt: skip


def _rbln() -> Ready:
    from dielet.compat.rbln_artefact import CONFIG, read_config
    from dielet.compat.rbln_options import COMPILE, RBLNDecoderOnlyModelForCausalLMConfig

    folder = scratch()
    whole = RBLNDecoderOnlyModelForCausalLMConfig(max_seq_len=2048, batch_size=2)
    whole.settle(4096)
    values = {**{name: getattr(whole, name) for name in COMPILE}, "cls_name": "C"}
    small = {"cls_name": "C", "batch_size": 2, "decoder_batch_sizes": [2, 1], "npu": "RBLN-CA25"}

    def read(data: bytes) -> None:
        rewritten(folder / CONFIG, data)
        config = read_config(folder, "C", RBLNDecoderOnlyModelForCausalLMConfig())
        config.settle(4096)
        config.compile_options()

    return Ready(read, (json.dumps(values).encode(), json.dumps(small).encode()))


# Traces


def _trace() -> Ready:
    return Ready(_file(read_trace, "a.pb"), TRACES)


def packed(data: bytes) -> bytes:
    """Packets as one compressed packet."""
    body = p.text(p.COMPRESSED, zlib.compress(data, 1))
    return p.packet(body)


def _packed_trace() -> Ready:
    """Compressed packets whose inside is changed, between two whole ones."""
    path = scratch() / "a.pb"
    first = TRACES[0]

    def read(data: bytes) -> None:
        read_trace(rewritten(path, packed(data) + first))

    return Ready(read, TRACES)


def _zipped_trace() -> Ready:
    """Compressed packets that are changed from outside."""
    return Ready(_file(read_trace, "a.pb"), (packed(TRACES[0]), packed(TRACES[1]) * 2))


def _table() -> Ready:
    from dielet.analysis.open import open_table

    path = scratch() / "a.pb"
    open_table(rewritten(path, TRACES[0]))  # the generated reader, once and for all
    return Ready(_file(open_table, "b.pb"), (*TRACES, packed(TRACES[0])))


TRACE_WORDS = (
    b"\x0a", b"\x0a\x00", b"\x5a", b"\x08\x01", b"\x48\x02", b"i0_0_W0_a_0",
    b"i9_99999999999_W0_a_0",
    b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x7f", b"\x92\x03", b"\x62", b"\x41", b"\x58\x01",
    b"i0_0_W4294967296_b_0",
)  # fmt: skip

READERS: dict[str, Reader] = {
    "safetensors": Reader(_safetensors, (b'"F64"', b'"BF16"', b'"shape":[', b'"data_offsets":[0,')),
    "config": Reader(_config, QUOTED),
    "tokenizer.json": Reader(
        _tokenizer_json, (b'"Regex"', b'"type"', b'"Unigram"', b'"WordPiece"')
    ),
    "tokenizer_config": Reader(
        lambda: _beside_config("tokenizer_config.json", [TOKENIZER_CONFIG]),
        (b'"added_tokens_decoder"', b'"name"', b'"content"'),
        usual=50_000,
    ),
    "generation_config": Reader(
        lambda: _beside_config("generation_config.json", [GENERATION]), usual=50_000
    ),
    "template": Reader(_template, TEMPLATE_WORDS, usual=25_000),
    "hub": Reader(_hub, (b'"../x"', b'"rfilename"', b'"sha":', b'"a\\u0000"')),
    "gguf": Reader(_gguf, GGUF_WORDS, usual=30_000),
    "manifest": Reader(_manifest, MANIFEST_WORDS),
    "image": Reader(_image, (b'"shares":[', b'"offset":', b"DIELETIM")),
    "program": Reader(
        _program, (b"linear", b"\xcf" + b"\xff" * 8, b"\xdb\xff\xff\xff\xff", b"\xc0")
    ),
    "npy": Reader(_npy, NPY_WORDS, usual=50_000),
    "kernels": Reader(_kernels, (b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"), usual=50_000),
    "objects": Reader(_objects, errors=(NotFlat,), usual=50_000),
    "verified": Reader(_verified, usual=20_000),
    "prompt_cache": Reader(
        _prompt_cache, (b'"panel_bytes":', b'"tokens":[', b'"sha256":['), usual=50_000
    ),
    "device": Reader(_device, DEVICE_WORDS),
    "overrides": Reader(_overrides, OVERRIDE_WORDS),
    "roles": Reader(_roles, TOML_WORDS),
    "budget": Reader(_budget, TOML_WORDS),
    "rbln_config": Reader(_rbln, (b'"phases"', b'"sliding_window"', b'"quantization"', b'"npu"')),
    "trace": Reader(_trace, TRACE_WORDS, usual=30_000),
    "trace-packed": Reader(_packed_trace, TRACE_WORDS, usual=20_000),
    "trace-zipped": Reader(_zipped_trace, TRACE_WORDS, usual=50_000),
    "table": Reader(_table, TRACE_WORDS, usual=10_000),
}
