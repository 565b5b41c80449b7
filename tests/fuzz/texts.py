"""Readers of what people write, and of traces."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from dielet.checkpoint.config import Entries
from dielet.checkpoint.roles import read_roles
from dielet.devices import load_device, read_device
from dielet.devices.override import overridden
from dielet.devices.read import NEEDED
from dielet.profiler import perfetto as p
from dielet.profiler.reader import read_trace
from dielet.simulator.sweep import parse_settings
from tests.fuzz.checkpoints import CONFIGS
from tests.fuzz.mutate import rewritten, scratch
from tests.fuzz.reader import Ready, file_reader
from tests.fuzz.traces import TRACES

DEVICE = f"""name = "toy"
chiplets = 2  # assumed
partition = "column"
shared_memory = "device"
[engine.core]
commands = {[*NEEDED]}
setup = "30 ns" # measured
[engine.core.peak]
int8 = "850 GOP/s" # assumed
[memory.dram]
bandwidth = "44 GB/s" # source: a page
"""
DEVICE_WORDS = (
    b'"1e999999 GB/s"', b'"NaN ns"', b'"Infinity s"', b"[[engine]]", b"[engine.core.rates]",
    b'"linear int8 1" = "1 GOP/s" # assumed\n', b"[spaces]", b"1979-05-27T07:32:00Z", b"''' ",
    b'"a\\nb" = 1\n', b"x.y.z = 1\n", b"devices = 2 # assumed\n", b'launch = "1 us" # assumed\n',
    b"# assumed",
)  # fmt: skip


def make_device() -> Ready:
    return Ready(file_reader(lambda path: load_device(str(path)), "toy.toml"), (DEVICE.encode(),))


def make_overrides() -> Ready:
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


def make_roles() -> Ready:
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

    return Ready(file_reader(read, "roles.toml"), (sample,))


def make_budget() -> Ready:
    from dielet.analysis.budget import read_budget

    sample = (
        b"ttft_ms_max = 10\ncomplete = true\ndram_share_min = 0.5\nforbidden_findings = []\n"
        b'[busy_min]\n"Neural DMA" = 0.5\n'
    )
    return Ready(file_reader(read_budget, "budget.toml"), (sample,))


TOML_WORDS = (
    b"[a]\n", b"a.b = 1\n", b"= {", b"1979-05-27", b"1e999", b"inf", b"nan", b"'''", b'"""',
    b"[[x]]\n", b"= [" + b"[" * 900, b"0x", b"= true", b'"a\\nb" = 1\n',
)  # fmt: skip


def make_rbln() -> Ready:
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


def make_trace() -> Ready:
    return Ready(file_reader(read_trace, "a.pb"), TRACES)


def packed(data: bytes) -> bytes:
    """Packets as one compressed packet."""
    body = p.text(p.COMPRESSED, zlib.compress(data, 1))
    return p.packet(body)


def make_packed_trace() -> Ready:
    """Compressed packets whose inside is changed, between two whole ones."""
    path = scratch() / "a.pb"
    first = TRACES[0]

    def read(data: bytes) -> None:
        read_trace(rewritten(path, packed(data) + first))

    return Ready(read, TRACES)


def make_zipped_trace() -> Ready:
    """Compressed packets that are changed from outside."""
    return Ready(file_reader(read_trace, "a.pb"), (packed(TRACES[0]), packed(TRACES[1]) * 2))


def make_table() -> Ready:
    from dielet.analysis.open import open_table

    path = scratch() / "a.pb"
    open_table(rewritten(path, TRACES[0]))  # the generated reader, once and for all
    return Ready(file_reader(open_table, "b.pb"), (*TRACES, packed(TRACES[0])))


TRACE_WORDS = (
    b"\x0a", b"\x0a\x00", b"\x5a", b"\x08\x01", b"\x48\x02", b"i0_0_W0_a_0",
    b"i9_99999999999_W0_a_0",
    b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x7f", b"\x92\x03", b"\x62", b"\x41", b"\x58\x01",
    b"i0_0_W4294967296_b_0",
)  # fmt: skip
