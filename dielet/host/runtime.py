"""A compiled model loaded on this machine: runs one program after the other over a KV state."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet import paths
from dielet.checkpoint.spec import ModelSpec
from dielet.codegen import KernelKey, compile_kernels, host_target
from dielet.errors import CapacityError, NumericError, UsageError
from dielet.formats.packed import WeightFormat
from dielet.host.embedding import Embedding, embed_key
from dielet.host.memory import Bases, Bytes, anonymous
from dielet.host.tables import Tables, build_tables, kernel_key
from dielet.host.team import Team
from dielet.image import ModelFiles, open_directory
from dielet.program import KvLayout, Program, verify_program
from dielet.program.select import program_name

HEAD_PROGRAM = "head_1"


@dataclass(frozen=True)
class Logits:
    """Scores of the next token: f32 [vocab], overwritten by the next `forward`; the best id."""

    values: NDArray[np.float32]
    argmax: int


class State:
    """One sequence: its KV cache, how many tokens are in it, which program ran last."""

    def __init__(self, layout: KvLayout) -> None:
        self.kv: Bytes = anonymous(layout.nbytes)
        self.past = 0
        self.program = ""
        self.program_switches = 0

    def rewind(self, past: int) -> None:
        """Forget the tokens from position `past` on."""
        if not 0 <= past <= self.past:
            raise UsageError(f"cannot rewind to {past}: the state holds {self.past} tokens")
        self.past = past


@dataclass(frozen=True)
class Execution:
    """One program execution as measured: `stamps[w]` has start and end ticks of w's pieces."""

    tables: Tables
    past: int
    valid: int


class Runtime:
    """One loaded model.  Not thread-safe: whoever shares it queues up the calls."""

    def __init__(self, files: ModelFiles, threads: int | None = None) -> None:
        self.files, self.manifest = files, files.manifest
        self.spec: ModelSpec = files.manifest.spec
        self.max_seq_len = files.manifest.max_seq_len
        self.chunk = files.manifest.prefill_chunk
        self.layout = KvLayout.of(self.spec, self.max_seq_len)
        self.observer: Callable[[Execution], None] | None = None
        self._sizes = files.sizes() | {"kv": self.layout.nbytes}
        self._programs: dict[str, Tables] = {}
        fmt = WeightFormat.parse(files.manifest.embedding_format)
        self._library = compile_kernels(
            [*self._kernel_keys(), embed_key(fmt, self.spec.hidden)],
            host_target(),
            paths.cache_dir("native"),
        )
        self._team = Team(self._library, threads or len(os.sched_getaffinity(0)))
        embed = self._library.address(embed_key(fmt, self.spec.hidden))
        self._embedding = Embedding(embed, files.embedding, self.spec.hidden)
        self._bases, self._head_bases = self._memory()
        self._binding = np.zeros(2, np.int64)
        self._head_binding = np.array([0, 1], np.int64)
        self._head = self._tables(HEAD_PROGRAM)
        self._ids = np.zeros(self.chunk, np.int32)

    def new_state(self) -> State:
        return State(self.layout)

    def forward(
        self, state: State, tokens: NDArray[np.int32], want_logits: bool = True
    ) -> Logits | None:
        """Run `tokens` [1 ... chunk] after `state.past`, and the head for the last one.

        Raises CapacityError before any work when they do not fit, UsageError for a token outside
        the vocabulary, NumericError when a logit is NaN or infinite.
        """
        n = self._check(state, tokens)
        name = program_name(self.manifest.kv_ladder, self.chunk, state.past, n)
        tables = self._tables(name)
        if name != state.program:
            state.program_switches += bool(state.program)
            state.program = name
        hidden_in = self._io(self._bases, tables.program, "hidden_in")
        self._embedding.look_up(self._ids[:n], hidden_in)
        self._bases["kv"] = state.kv
        self._run(tables, self._bases, state.past, n)
        state.past += n
        if not want_logits:
            return None
        hidden_out = self._io(self._bases, tables.program, "hidden_out")
        return self._head_of(hidden_out[n - 1])

    def _check(self, state: State, tokens: NDArray[np.int32]) -> int:
        n = len(tokens)
        if not 1 <= n <= self.chunk:
            raise UsageError(f"{n} tokens in one step: must be from 1 to {self.chunk}")
        if state.past + n > self.max_seq_len:
            raise CapacityError(
                f"{state.past + n} tokens do not fit the context of {self.max_seq_len}; shorten "
                "the prompt or compile with a larger --max-seq-len"
            )
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.spec.vocab:
            raise UsageError(
                f"token ids {int(tokens.min())} ... {int(tokens.max())}: must be from 0 to "
                f"{self.spec.vocab - 1}, the model's vocabulary"
            )
        self._ids[:n] = tokens
        return n

    def _head_of(self, hidden: NDArray[np.float32]) -> Logits:
        program = self._head.program
        self._io(self._head_bases, program, "hidden_in")[0] = hidden
        self._run(self._head, self._head_bases, 0, 1)
        best, argmax, bad = -np.inf, 0, 0
        for command in program.commands:
            if command.kind == "select":
                region = command.operand("y").region
                words = self._head_bases["io"][region.offset : region.end].view(np.int32)
                bad += int(words[2])
                if (value := float(words[:1].view(np.float32)[0])) > best:
                    best, argmax = value, int(words[1]) + int(command.attrs["first_column"])
        if bad:
            raise NumericError(
                f"{bad} of {self.spec.vocab} logits are NaN or infinite; the weights or the "
                "number format do not suit this model: try --weights bf16"
            )
        logits = self._io(self._head_bases, program, "logits")[0, : self.spec.vocab]
        return Logits(logits, argmax)

    def _run(self, tables: Tables, bases: Bases, past: int, valid: int) -> None:
        self._binding[:] = past, valid
        self._team.run(tables, bases.table, self._binding)
        if self.observer is not None:
            self.observer(Execution(tables, past, valid))

    def _io(self, bases: Bases, program: Program, name: str) -> NDArray[np.float32]:
        region = program.io[name]
        return bases["io"][region.offset : region.end].view(np.float32).reshape(region.rows, -1)

    def _tables(self, name: str) -> Tables:
        """The program's native tables, built and verified at its first use."""
        tables = self._programs.get(name)
        if tables is None:
            program = self.files.program(name)
            verify_program(program, self._sizes)
            tables = build_tables(program, self._team.workers, self._library.address)
            self._programs[name] = tables
        return tables

    def _kernel_keys(self) -> list[KernelKey]:
        """Of one program per phase and token count: rungs of the ladder share their kernels."""
        firsts = {(p.phase, p.tokens): p.name for p in reversed(self.manifest.programs)}
        programs = [self.files.program(name) for name in firsts.values()]
        return list(dict.fromkeys(kernel_key(c) for p in programs for c in p.commands))

    def _memory(self) -> tuple[Bases, Bases]:
        """Address tables of the decoder programs and of the head; activations are shared."""
        decoder, head = Bases(), Bases()
        for bases in (decoder, head):
            for space, memory in self.files.spaces().items():
                bases[space] = memory
        for bases, is_head in ((decoder, False), (head, True)):
            for space in ("shared", "io"):
                bases[space] = anonymous(self.files.activation_bytes(is_head, space))
        return decoder, head

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes that one decode step reads: the decoder once, the head once."""
        return self.files.decoder.table.data_nbytes + sum(
            operand.region.nbytes
            for command in self._head.program.commands
            for operand in command.operands
            if operand.role == "w"
        )

    def memory_by_owner(self) -> dict[str, int]:
        """Bytes by owner; `kv` is one sequence's cache at full length, resident only as used."""
        return dict(self.manifest.memory)

    def close(self) -> None:
        """Stop the helper threads; the runtime cannot be used afterwards."""
        self._team.close()


def load_runtime(directory: str | Path, threads: int | None = None) -> Runtime:
    """Open a model directory and make it ready to run on `threads` cores (default: all)."""
    return Runtime(open_directory(directory), threads)
