"""Other targets: their results where this machine can run them, their instructions everywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dielet.codegen import TARGETS, KernelKey, Target, host_target, jit
from dielet.codegen.function import Module
from dielet.codegen.kernels import generate
from dielet.codegen.worker import worker_module

from . import test_attention, test_linear, test_rowwise
from .freestanding import EMULATION, EMULATORS
from .harness import from_bf16, relative

X86 = host_target().triple.startswith("x86_64")
OTHERS = [pytest.param(TARGETS[n], id=n) for n in ("avx2", "plain")] if X86 else []
OTHERS += [pytest.param(TARGETS[n], id=n, marks=EMULATION) for n in EMULATORS] if X86 else []


def linear_key(format: str, T: int, group: int = 64, minimum: bool = False) -> KernelKey:
    group = 0 if format == "bf16" else group
    static = {"K": 256, "format": format, "group": group, "minimum": minimum}
    return KernelKey.of("linear", **static, T=T, residual=True, bias=True)


KEYS = [
    *(
        linear_key(f, T, 32, m)
        for f, m in [("bf16", False), ("int8", False), ("int4", True)]
        for T in (1, 16)
    ),
    *(test_linear.linear_key("int4g32z", 256, T, True, True) for T in (1, 16)),
    *(KernelKey.of("attention", D=D, G=2, T=T, out="bf16") for D, T in [(64, 1), (80, 16)]),
    *(KernelKey.of("attention", D=64, G=2, T=T, out="bf16", kv="int8") for T in (1, 16)),
    *(
        KernelKey.of("rmsnorm", K=256, eps=1e-6, out=out, group=32)
        for out in ("f32", "bf16", "int8")
    ),
    KernelKey.of("quantize", group=32),
    KernelKey.of("convert"),
    KernelKey.of("silu_mul", out="int8", group=32),
    KernelKey.of("rotary", D=64, norm=True, eps=1e-6, scale=0.5),
    KernelKey.of("kv_append", D=64, norm=True, eps=1e-6),
    KernelKey.of("kv_append", D=64, norm=True, eps=1e-6, kv="int8"),
    KernelKey.of("embed", K=256, format="int4", group=32, minimum=True),
    KernelKey.of("embed", K=256, format="int4", group=32, minimum=True, zeros=True),
    KernelKey.of("select"),
    KernelKey.of("copy", parts=2, extent="positions"),
    KernelKey.of("reduce", count=3, residual=True),
]


def assembly(key: KernelKey, target: Target) -> str:
    module = Module(target.fused)
    generate(module, target, key)
    return jit.emit_assembly(str(module), target)


def mnemonics(text: str) -> set[str]:
    return set(re.findall(r"^\t([a-z][a-z0-9.]*)", text, re.MULTILINE))


@pytest.mark.parametrize("target", OTHERS)
class TestResults:
    """The tests of the host's own target, on the others: here, or on an emulated processor."""

    @pytest.mark.parametrize("name", test_linear.FORMATS)
    @pytest.mark.parametrize("T", [1, 16])
    def test_linear(self, target: Target, name: str, T: int) -> None:
        packed, w = test_linear.weights(name, 64, 256)
        x = np.random.default_rng(1).standard_normal((16, 256)).astype(np.float32)
        want = test_linear.activations(name, x)[1] @ w.T
        y = test_linear.apply(name, packed, x, 64, T, T, target=target)
        assert relative(y[:T], want[:T]) < 3e-6

    @pytest.mark.parametrize("name", ["bf16", "int8g64", "int4g32m"])
    def test_rows_do_not_depend_on_the_chunk(self, target: Target, name: str) -> None:
        packed, _ = test_linear.weights(name, 32, 1024)
        x = np.random.default_rng(1).standard_normal((16, 1024)).astype(np.float32)
        whole = test_linear.apply(name, packed, x, 32, 16, 13, target=target)
        for t in range(13):
            row = np.tile(x[t], (16, 1))
            alone = test_linear.apply(name, packed, row, 32, 1, 1, target=target)
            np.testing.assert_array_equal(alone[0].view(np.int32), whole[t].view(np.int32))

    def test_extremes_of_the_integer_dot(self, target: Target) -> None:
        test_linear.check_extremes(target)

    def test_embed(self, target: Target) -> None:
        for name in ("bf16", "int8g32", "int4g32m", "int4g32z"):
            test_linear.check_embed(name, target)

    def test_rowwise(self, target: Target) -> None:
        test_rowwise.check_quantize(target)
        for out in ("f32", "bf16", "int8"):
            test_rowwise.check_rmsnorm(64, 32, out, target=target)
            test_rowwise.check_silu_mul(out, target=target)

    def test_select(self, target: Target) -> None:
        test_rowwise.check_select(100, target)

    @pytest.mark.parametrize("D, G", [(64, 2), (80, 3)])
    @pytest.mark.parametrize("kv", ["bf16", "int8"])
    def test_attention(self, target: Target, D: int, G: int, kv: str) -> None:
        test_attention.check_rotary(D, True, target=target)
        test_attention.check_kv_append(D, True, kv, target)
        cache = test_attention.filled(2, D, 171, target, kv)
        q = test_attention.queries(16, 2 * G * D)
        whole = test_attention.attend(cache, q, G, 16, 160, 11)
        for t in range(11):
            alone = test_attention.attend(cache, q[t : t + 1].copy(), G, 1, 160 + t, 1)
            np.testing.assert_array_equal(alone[0].view(np.int32), whole[t].view(np.int32))
        k, v = cache.contents(161)
        s = np.einsum("hgd,hsd->hgs", from_bf16(q[0]).reshape(2, G, D), k)
        p = np.exp2(s - s.max(-1, keepdims=True))
        want = np.einsum("hgs,hsd->hgd", p / p.sum(-1, keepdims=True), v)
        assert relative(whole[0].reshape(2, G, D), want) < test_attention.BOUND[kv]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_every_kernel_compiles_without_calls(target: Target, key: KernelKey) -> None:
    """No run-time library: a kernel that calls one could not be loaded."""
    text = assembly(key, target)
    assert not mnemonics(text) & {"call", "callq", "bl", "b.w"}, text


@pytest.mark.parametrize(
    "triple, cpu, features",
    [
        ("aarch64-unknown-linux-gnu", "generic", ""),
        ("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d"),
        ("powerpc64le-unknown-linux-gnu", "pwr8", ""),
    ],
)
def test_plain_compiles_for_other_processors(triple: str, cpu: str, features: str) -> None:
    plain = replace(TARGETS["plain"], triple=triple, cpu=cpu, features=features)
    for key in KEYS[2::3]:
        assert jit_object(key, plain)


def jit_object(key: KernelKey, target: Target) -> bytes:
    module = Module(target.fused)
    generate(module, target, key)
    return jit.emit_object(str(module), target)


INSTRUCTIONS = [
    ("avx512", "int8", {"vpdpbusd"}),
    ("avx512", "int4", {"vpdpbusd"}),
    ("avx512", "bf16", {"vdpbf16ps"}),
    ("avx2", "int8", {"vpsignb", "vpabsb", "vpmaddubsw", "vpmaddwd"}),
    ("avx2", "int4", {"vpmaddubsw", "vpmaddwd"}),
    ("avx2", "bf16", {"vfmadd231ps"}),
    ("neon", "int8", {"sdot"}),
    ("neon", "int4", {"sdot"}),
    ("neon", "bf16", {"fmla"}),
    ("neon_bf16", "bf16", {"bfdot"}),
]


@pytest.mark.parametrize("name, format, wanted", INSTRUCTIONS)
@pytest.mark.parametrize("T", [1, 16])
def test_linear_uses_the_dot_instruction(name: str, format: str, wanted: set[str], T: int) -> None:
    text = assembly(linear_key(format, T), TARGETS[name])
    found = mnemonics(text)
    assert all(any(f.startswith(w[:-6]) if "fmadd" in w else f == w for f in found) for w in wanted)
    if name == "avx512":
        assert "%zmm" in text and len(re.findall("%ymm", text)) < len(re.findall("%zmm", text)) / 10


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_worker_compiles(target: Target) -> None:
    text = jit.emit_assembly(str(worker_module(target)), target)
    rests = {"avx512": "pause", "avx2": "pause", "neon": "yield", "neon_bf16": "yield"}
    assert rests.get(target.name, "") in text
    clock = {"neon": "CNTVCT_EL0", "neon_bf16": "CNTVCT_EL0"}.get(target.name, "rdtsc")
    assert clock in text
