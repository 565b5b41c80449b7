"""The runtime on small models: batches, several logits at once, errors, threads, and no leaks."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dielet.errors import CapacityError, DamagedFile, NumericError, UsageError
from dielet.host import Runtime, load_runtime
from dielet.image.file import Image
from dielet.program import Operand, Program
from dielet.program.commands import ENTRIES
from dielet.program.commands.attributes import ATTRIBUTES
from dielet.program.types import Queue
from tests.models import LLAMA, QWEN, compiled

IDS = (np.arange(128) * 11 % 331).astype(np.int32)


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("model") / "m"
    compiled(folder, LLAMA, chiplets=3, weights="int8", batch_sizes=(2, 5))
    loaded = load_runtime(folder, threads=2)
    yield loaded
    loaded.close()


def alone(runtime: Runtime, prompt: np.ndarray, new: int) -> list[np.ndarray]:
    """Logits of a prompt and then of `new` greedy tokens."""
    state = runtime.new_state()
    for at in range(0, len(prompt), runtime.chunk):
        logits = runtime.forward(state, prompt[at : at + runtime.chunk])
    found = [logits.values.copy()]
    for _ in range(new):
        logits = runtime.forward(state, np.array([logits.argmax], np.int32))
        found.append(logits.values.copy())
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_batch_gives_each_sequence_its_own_bits(runtime: Runtime, size: int) -> None:
    prompts = [IDS[n : n + 3 + 7 * n] for n in range(size)]
    states, tokens = [], []
    for prompt in prompts:
        states.append(runtime.new_state())
        for at in range(0, len(prompt), runtime.chunk):
            logits = runtime.forward(states[-1], prompt[at : at + runtime.chunk])
        tokens.append(logits.argmax)
    together: list[list[np.ndarray]] = [[] for _ in prompts]
    for _ in range(6):
        rows = runtime.forward_batch(states, np.array(tokens, np.int32))
        tokens = [row.argmax for row in rows]
        for found, row in zip(together, rows, strict=True):
            found.append(row.values.copy())
    for prompt, found in zip(prompts, together, strict=True):
        for expected, got in zip(alone(runtime, prompt, 6)[1:], found, strict=True):
            np.testing.assert_array_equal(expected, got)


def test_logits_of_every_token_of_a_chunk(runtime: Runtime) -> None:
    state, other = runtime.new_state(), runtime.new_state()
    runtime.forward(state, IDS[:5], want_logits=False)
    rows = [row.values.copy() for row in runtime.forward_all(state, IDS[5:15])]
    for n in range(15):
        logits = runtime.forward(other, IDS[n : n + 1])
        if n >= 5:
            np.testing.assert_array_equal(rows[n - 5], logits.values)
    with pytest.raises(UsageError, match="at most 16"):
        runtime.forward_all(state, IDS[:17])


def test_rewinding_is_as_if_it_never_happened(runtime: Runtime) -> None:
    state = runtime.new_state()
    runtime.forward(state, IDS[:9])
    expected = runtime.forward(state, IDS[9:12]).values.copy()
    runtime.forward(state, IDS[40:50])
    state.rewind(9)
    np.testing.assert_array_equal(expected, runtime.forward(state, IDS[9:12]).values)
    with pytest.raises(UsageError, match="holds 12"):
        state.rewind(13)


def test_what_does_not_fit_is_refused_before_any_work(runtime: Runtime) -> None:
    state = runtime.new_state()
    for at in range(0, 128, 16):
        runtime.forward(state, IDS[at : at + 16], want_logits=False)
    with pytest.raises(CapacityError, match=r"129 tokens .* context of 128"):
        runtime.forward(state, IDS[:1])
    with pytest.raises(CapacityError, match="129"):
        runtime.forward_batch([runtime.new_state(), state], IDS[:2])
    assert state.past == 128
    fresh = runtime.new_state()
    for bad, complaint in (
        (IDS[:0], "0 tokens"),
        (IDS[:17], "17 tokens"),
        (np.array([331], np.int32), "331"),
        (np.array([-1], np.int32), "-1"),
    ):
        with pytest.raises(UsageError, match=complaint):
            runtime.forward(fresh, bad)
    with pytest.raises(UsageError, match="programs for 1, 2, 5"):
        runtime.forward_batch([fresh] * 6, IDS[:6])
    assert fresh.past == 0


def test_nan_logits_are_an_error(tmp_path: Path) -> None:
    compiled(tmp_path / "m", QWEN, weights="bf16")
    loaded = load_runtime(tmp_path / "m")
    state = loaded.new_state()
    loaded.forward(state, IDS[:4])
    state.kv[:] = 0xFF  # a cache that went bad after it was filled
    with pytest.raises(NumericError, match="NaN or infinite"):
        loaded.forward(state, IDS[4:5])
    loaded.close()


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_more_and_fewer_threads_than_cores(tmp_path: Path, runtime: Runtime, threads: int) -> None:
    other = load_runtime(runtime.files.path, threads)
    for expected, got in zip(alone(runtime, IDS[:21], 4), alone(other, IDS[:21], 4), strict=True):
        np.testing.assert_array_equal(expected, got)
    other.close()


def test_closing_ends_the_threads(runtime: Runtime) -> None:
    before = threading.active_count()
    for _ in range(20):
        other = load_runtime(runtime.files.path, threads=3)
        other.forward(other.new_state(), IDS[:3])
        other.close()
        assert threading.active_count() == before
    other.close()
    with pytest.raises(UsageError, match="closed"):
        other.forward(other.new_state(), IDS[:3])
    with pytest.raises(UsageError, match="0 threads"):
        load_runtime(runtime.files.path, threads=0)


def test_a_forgotten_runtime_leaves_no_threads(runtime: Runtime) -> None:
    before = threading.active_count()
    load_runtime(runtime.files.path, threads=3)
    gc.collect()
    assert threading.active_count() == before


def test_after_a_fork_the_child_is_told_to_load_again(runtime: Runtime) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            runtime.forward(runtime.new_state(), IDS[:3])
            os.write(write, b"ran")
        except UsageError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert b"load it again in the child" in os.read(read, 1000)
    os.close(read)
    os.close(write)


def tampered(program: Program, number: int, **change: object) -> Program:
    commands = list(program.commands)
    attrs = {**commands[number].attrs, **change}
    commands[number] = msgspec.structs.replace(commands[number], attrs=attrs)
    return msgspec.structs.replace(program, commands=tuple(commands))


def with_command(program: Program, number: int, **change: object) -> Program:
    commands = list(program.commands)
    commands[number] = msgspec.structs.replace(commands[number], **change)
    return msgspec.structs.replace(program, commands=tuple(commands))


def kinded(program: Program, number: int, kind: str) -> Program:
    return with_command(program, number, kind=kind)


def with_operand(program: Program, number: int, role: str, change: Callable) -> Program:
    operands = program.commands[number].operands
    changed = tuple(change(o) if o.role == role else o for o in operands)
    return with_command(program, number, operands=changed)


def retyped(program: Program, number: int, role: str, dtype: str) -> Program:
    return with_operand(program, number, role, lambda o: msgspec.structs.replace(o, dtype=dtype))


def replaced(program: Program, number: int, role: str, **change: int) -> Program:
    def change_region(operand: Operand) -> Operand:
        region = msgspec.structs.replace(operand.region, **change)
        return msgspec.structs.replace(operand, region=region)

    return with_operand(program, number, role, change_region)


def test_programs_that_break_their_rules_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = compiled(tmp_path / "m", LLAMA, weights="int8")
    read_program = Image.program
    good = files.program("decode_1_kv64")
    kinds = [command.kind for command in good.commands]
    linear, norm = kinds.index("linear"), kinds.index("rmsnorm")
    attention, append = kinds.index("attention"), kinds.index("kv_append")
    bad = [
        tampered(good, linear, K=1 << 22),
        tampered(good, linear, T=1 << 24),
        tampered(good, linear, group=128),
        tampered(good, norm, K=1 << 26),
        tampered(good, norm, row0=1 << 40),
        tampered(good, linear, residual=not good.commands[linear].attrs["residual"]),
        tampered(good, linear, bias=True),
        tampered(good, linear, group=1016067),
        tampered(good, linear, format="i32"),
        tampered(good, linear, K=0),
        tampered(good, linear, colour=1),
        tampered(good, norm, out="s8"),
        tampered(good, norm, eps=float("nan")),
        tampered(good, attention, G=64),
        tampered(good, attention, D=1 << 31),
        tampered(good, attention, batch=True),
        tampered(good, attention, T=16),
        tampered(good, append, D=16),
        retyped(good, linear, "x", "f32"),
        replaced(good, linear, "x_sum", offset=3),
        replaced(good, norm, "y", rows=1 << 62, stride=0),
        replaced(good, append, "v_cache", rows=3),
        kinded(good, append, "bf16"),
        kinded(good, append, "attention"),
        msgspec.structs.replace(good, io={}),
        msgspec.structs.replace(good, chiplets=3),
        msgspec.structs.replace(good, devices=3),
        msgspec.structs.replace(good, device="nope"),
        msgspec.structs.replace(good, queues=(Queue(7, "core"), *good.queues[1:])),
        msgspec.structs.replace(good, groups=()),
        msgspec.structs.replace(good, queues=()),
        msgspec.structs.replace(
            good, commands=(msgspec.structs.replace(good.commands[0], deps=(5,)),)
        ),
        msgspec.structs.replace(good, sizes={**good.sizes, "weights": 1 << 60}),
        msgspec.structs.replace(good, sizes={**good.sizes, "shared": 1 << 40}),
        msgspec.structs.replace(good, capacity=1 << 20),
    ]
    for program in bad:
        monkeypatch.setattr(
            Image,
            "program",
            lambda self, name, program=program: (
                program if name == good.name else read_program(self, name)
            ),
        )
        with pytest.raises(DamagedFile, match=rf"{good.name}.*compile the model again") as caught:
            load_runtime(tmp_path / "m")
        assert "decoder_model_fixed.img" in str(caught.value) or "manifest.json" in str(
            caught.value
        )


def test_every_attribute_has_a_range() -> None:
    for entry in ENTRIES.values():
        assert {*entry.static, *entry.options, *entry.others} <= set(ATTRIBUTES), entry.kind


def test_helpers_wake_after_a_long_rest(runtime: Runtime) -> None:
    state = runtime.new_state()
    for pause in (0, 0.01, 0.2):
        threading.Event().wait(pause)
        runtime.forward(state, IDS[:2])
    assert state.past == 6
