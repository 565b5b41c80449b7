"""A compiled model loaded on this machine: runs one program after the other over a KV state."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dielet import paths, profiling
from dielet.checkpoint.spec import ModelSpec
from dielet.codegen import KernelKey, compile_kernels, host_target
from dielet.codegen.cache import recipe
from dielet.errors import CapacityError, DamagedFile, InternalError, NumericError, UsageError
from dielet.formats.packed import PANEL, WeightFormat
from dielet.formats.parallel import available_cores
from dielet.host.embedding import Embedding, embed_key
from dielet.host.limits import read_bandwidth
from dielet.host.memory import Bases, Bytes, address, anonymous, drop_code_pages
from dielet.host.tables import Tables, build_tables, kernel_key
from dielet.host.team import Team
from dielet.image import ModelFiles, open_directory
from dielet.image.names import COS, DECODER, SIN, TABLE
from dielet.image.options import HEAD_ROWS, MAX_BATCH
from dielet.program import KvLayout, Program, Region, verify_commands, verify_program
from dielet.program.commands import ENTRIES
from dielet.program.select import program_name, rung_for
from dielet.program.types import SPACES

KV = SPACES.index("kv")


@dataclass(frozen=True)
class Logits:
    """Scores of the next token: f32 [vocab], overwritten by the next `forward`; the best id."""

    values: NDArray[np.float32]
    argmax: int


class State:
    """One sequence: its KV cache, how many tokens are in it, which program ran last."""

    def __init__(self, layout: KvLayout) -> None:
        try:
            self.kv: Bytes = anonymous(layout.nbytes)
        except MemoryError:
            raise CapacityError(
                f"there is no memory for another cache of {layout.positions} tokens, "
                f"{layout.nbytes:,} bytes; end other programs, or compile with a smaller "
                "max_seq_len or kv=int8"
            ) from None
        panels, width = layout.positions // PANEL, PANEL * layout.position_bytes
        self._panels = self.kv.reshape(-1, panels, width)  # of every layer and head
        self.past = 0
        self.program = ""
        self.program_switches = 0

    def rewind(self, past: int) -> None:
        """Forget the tokens from position `past` on."""
        if not 0 <= past <= self.past:
            raise UsageError(f"cannot rewind to {past}: the state holds {self.past} tokens")
        self.past = past

    def read_panel(self, number: int) -> Bytes:
        """A copy of keys and values of 32 positions from 32 * number on, in all layers and heads:
        u8 [layers * 2 * KV heads, bytes]."""
        return self._panels[:, number].copy()

    def restore(self, panels: Sequence[Bytes], past: int) -> None:
        """Hold the first `past` tokens of the sequence that `panels` were read from, in order."""
        for number, panel in enumerate(panels):
            self._panels[:, number] = panel.reshape(len(self._panels), -1)
        self.past = past


@dataclass(frozen=True)
class Execution:
    """One program execution as measured: `stamps[w]` has start and end ticks of w's pieces.

    past: of a batch, that of the sequence with the longest.
    """

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
        manifest = files.manifest
        self.layout = KvLayout.of(
            self.spec, self.max_seq_len, manifest.kv_heads, manifest.kv_format
        )
        self.observer: Callable[[Execution], None] | None = None
        self._sizes = files.sizes() | {"kv": self.layout.nbytes}
        self._programs: dict[str, Tables] = {}
        self._bests: dict[int, list[tuple[int, Region]]] = {}  # by rows of the head's programs
        fmt = WeightFormat.parse(files.manifest.embedding_format)
        keys, kept = (
            [*self._kernel_keys(), embed_key(fmt, self.spec.hidden, self.spec.embedding_scale)],
            paths.cache_dir("native"),
        )
        self._library = compile_kernels(keys, host_target(kept), kept)
        drop_code_pages("libllvmlite")  # 40 MB and more, if something had to be compiled
        self._team = Team(self._library, available_cores() if threads is None else threads)
        weakref.finalize(self, self._team.close)  # a forgotten runtime leaves no threads behind
        # GB/s that these threads can read memory with, measured once per process. No method:
        # receipts hold it, and must not hold a model's memory.
        self.read_bandwidth = partial(read_bandwidth, self._team.workers)
        embed = self._library.address(embed_key(fmt, self.spec.hidden, self.spec.embedding_scale))
        self._embedding = Embedding(embed, files.embedding, self.spec.hidden)
        self._bases, self._head_bases = self._memory()
        self._binding = np.zeros(2 + 2 * MAX_BATCH, np.int64)
        self._head_rows = sorted(p.tokens for p in self.manifest.programs if p.phase == "head")
        self._ids = np.zeros(max(self.chunk, MAX_BATCH), np.int32)

    @property
    def threads(self) -> int:
        """Workers that a program runs on."""
        return self._team.workers

    def ticks(self) -> int:
        """The counter that the stamps of commands are taken from."""
        return self._library.clock()

    @property
    def kv_format(self) -> str:
        """Number format of the caches."""
        return self.layout.format

    @property
    def panel_bytes(self) -> int:
        """Of 32 positions of one sequence."""
        return PANEL * self.layout.bytes_per_token()

    @cached_property
    def identity(self) -> str:
        """Hash of all that decides what is in the cache: weights, rotary tables, and the code."""
        files = self.manifest.files
        weights = " ".join(files[name].sha256 for name in (DECODER, TABLE, COS, SIN))
        return recipe(f"kv {self.kv_format} {weights}", self._library.target)

    def new_state(self) -> State:
        return State(self.layout)

    def forward(
        self, state: State, tokens: NDArray[np.int32], want_logits: bool = True
    ) -> Logits | None:
        """Run `tokens` [1 ... chunk] after `state.past`, and the head for the last one.

        Raises CapacityError before any work when they do not fit, UsageError for a token outside
        the vocabulary, NumericError when a logit is NaN or infinite.
        """
        hidden = self._decode_chunk(state, tokens)
        return self._head(hidden[-1:])[0] if want_logits else None

    def forward_all(self, state: State, tokens: NDArray[np.int32]) -> list[Logits]:
        """Like `forward`, with the logits of every one of at most 16 tokens."""
        if len(tokens) > HEAD_ROWS:
            raise UsageError(f"logits of {len(tokens)} tokens at once: at most {HEAD_ROWS}")
        return self._head(self._decode_chunk(state, tokens))

    def forward_batch(self, states: Sequence[State], tokens: NDArray[np.int32]) -> list[Logits]:
        """One token for each of several sequences, the weights read once: each one's logits.

        As many as the largest of the model's batch sizes; errors as `forward`.
        """
        n = len(states)
        size = next((size for size in self.manifest.batch_sizes if size >= n), None)
        if n < 1 or size is None or len(tokens) != n:
            raise UsageError(
                f"a batch of {n} sequences and {len(tokens)} tokens: there are programs for "
                f"{', '.join(map(str, self.manifest.batch_sizes))}; compile with --batch-sizes"
            )
        if size == 1:
            return self._head(self._decode_chunk(states[0], tokens))
        for state in states:
            self._check(state, tokens)
        rung = rung_for(self.manifest.kv_ladder, max(state.past for state in states), 1)
        tables = self._tables(f"decode_{size}_kv{rung}")
        for row, state in enumerate(states):
            self._binding[2 + 2 * row : 4 + 2 * row] = state.past, address(state.kv)
            self._note_program(state, tables)
        hidden = self._execute(tables, tokens, None, 0)
        for state in states:
            state.past += 1
        return self._head(hidden)

    def _decode_chunk(self, state: State, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Run the decoder over one sequence's next tokens: hidden states [n, hidden]."""
        self._check(state, tokens)
        name = program_name(self.manifest.kv_ladder, self.chunk, state.past, len(tokens))
        tables = self._tables(name)
        self._note_program(state, tables)
        hidden = self._execute(tables, tokens, state, state.past)
        state.past += len(tokens)
        return hidden

    def _check(self, state: State, tokens: NDArray[np.int32]) -> None:
        n = len(tokens)
        if not 1 <= n <= self.chunk:
            raise UsageError(f"{n} tokens in one step: must be from 1 to {self.chunk}")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.spec.vocab:
            raise UsageError(
                f"token ids {int(tokens.min())} ... {int(tokens.max())}: must be from 0 to "
                f"{self.spec.vocab - 1}, the model's vocabulary"
            )

    def _note_program(self, state: State, tables: Tables) -> None:
        state.program_switches += state.program not in ("", tables.name)
        state.program = tables.name

    def _execute(
        self, tables: Tables, tokens: NDArray[np.int32], state: State | None, past: int
    ) -> NDArray[np.float32]:
        """Embed, run, and return the hidden states; without a state, caches are in the binding."""
        n = len(tokens)
        self._ids[:n] = tokens
        with profiling.mark(self, "model.model.embed_tokens", before=True):
            hidden_in = self._io(self._bases, tables, "hidden_in")
            self._embedding.look_up(self._ids[:n], hidden_in)
        self._bases.table[KV] = address(state.kv) if state is not None else 0
        self._run(tables, self._bases, past, n)
        return self._io(self._bases, tables, "hidden_out")[:n]

    def _head(self, hidden: NDArray[np.float32]) -> list[Logits]:
        """The logits of each hidden state, and each one's best token."""
        n = len(hidden)
        rows = next(rows for rows in self._head_rows if rows >= n)
        tables = self._tables(f"head_{rows}")
        bases = self._head_bases
        self._io(bases, tables, "hidden_in")[:n] = hidden
        self._run(tables, bases, 0, n)
        values = self._io(bases, tables, "logits")
        shares = [(first, self._select_words(place)[:n]) for first, place in self._bests[rows]]
        bad = sum(int(words[:, 2].sum()) for _, words in shares)
        if bad:
            raise NumericError(
                f"{bad} of {n * self.spec.vocab} logits are NaN or infinite; the weights or the "
                "number format do not suit this model: try --weights bf16"
            )
        for row in range(n):
            # A norm of numbers whose squares leave float32 is exactly 0, and so is all after it.
            if not any(w[row, 0] << 1 for _, w in shares) and not values[row].any():
                raise NumericError(
                    f"all {self.spec.vocab} logits are 0: sums left the range of float32, or there "
                    "is nothing but zeros in a norm or the head; the checkpoint is damaged"
                )
        return [
            Logits(values[row, : self.spec.vocab], _best([(c, w[row]) for c, w in shares]))
            for row in range(n)
        ]

    def _select_words(self, region: Region) -> NDArray[np.int32]:
        words = self._head_bases["io"][region.offset :].view(np.int32)
        shape, strides = (region.rows, region.width // 4), (region.stride, 4)
        return np.lib.stride_tricks.as_strided(words, shape, strides)

    def _run(self, tables: Tables, bases: Bases, past: int, valid: int) -> None:
        self._binding[:2] = past, valid
        self._team.run(tables, bases.table, self._binding)
        observer = self.observer  # which another thread may take away meanwhile
        if observer is not None:
            if tables.phase == "decode" and tables.tokens > 1:
                past = int(self._binding[2 : 2 + 2 * valid : 2].max())
            observer(Execution(tables, past, valid))

    def _io(self, bases: Bases, tables: Tables, name: str) -> NDArray[np.float32]:
        region = tables.io[name]
        words = bases["io"][region.offset : region.end].view(np.float32)
        # Rows may lie further apart than they are wide.
        shape, strides = (region.rows, region.width // 4), (region.stride, 4)
        return np.lib.stride_tricks.as_strided(words, shape, strides)

    def _tables(self, name: str) -> Tables:
        """The program's native tables, built and verified at its first use."""
        tables = self._programs.get(name)
        if tables is None:
            with profiling.mark(self, "prepare_program", before=True):
                tables = self._programs[name] = self._prepared(name)
        return tables

    def _prepared(self, name: str) -> Tables:
        program = self._verified(name, verify_program)
        again = partial(self.files.program, name)
        if program.phase == "head":
            self._bests[program.tokens] = _bests(program)
        return build_tables(program, self._team.workers, self._library.address, again)

    def _kernel_keys(self) -> list[KernelKey]:
        """Of one program per phase and token count: rungs of the ladder share their kernels."""
        firsts = {(p.phase, p.tokens): p.name for p in reversed(self.manifest.programs)}
        keys: dict[KernelKey, None] = {}
        for name in firsts.values():  # one at a time in memory: each is megabytes
            keys |= dict.fromkeys(map(kernel_key, self._verified(name, verify_commands).commands))
        return list(keys)

    def _verified(self, name: str, verify: Callable[[Program, dict[str, int]], None]) -> Program:
        """The program, once it is known to keep to its rules; DamagedFile otherwise."""
        program = self.files.program(name)
        allocated = self.files.activation_spaces(program.phase == "head")
        try:
            verify(program, {**allocated, **self._sizes})
        except InternalError as error:
            raise DamagedFile(
                f"{self.files.image_of(name).path}: program {name} breaks its rules ({error}); "
                "compile the model again"
            ) from None
        return program

    def _memory(self) -> tuple[Bases, Bases]:
        """Address tables of the decoder programs and of the head; activations are shared."""
        decoder, head = Bases(), Bases()
        for bases in (decoder, head):
            for space, memory in self.files.spaces().items():
                bases[space] = memory
        for bases, is_head in ((decoder, False), (head, True)):
            for space, nbytes in self.files.activation_spaces(is_head).items():
                bases[space] = anonymous(nbytes)
        return decoder, head

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes that one decode step reads: the decoder once, of mixtures the chosen
        experts alone, and the head once."""
        decoder = self.files.decoder.table.data_nbytes
        if self.spec.experts:
            name = next(p.name for p in self.manifest.programs if p.name.startswith("decode_1_"))
            decoder -= sum(
                operand.region.nbytes - ENTRIES[command.kind].moved(command, operand, None)
                for command in self.files.program(name).commands
                for operand in command.operands
                if operand.dtype == "packed"
            )
        return decoder + sum(
            operand.region.nbytes
            for command in self.files.program("head_1").commands
            for operand in command.operands
            if operand.role == "w"
        )

    def memory_by_owner(self) -> dict[str, int]:
        """Bytes by owner; `kv` is one sequence's cache at full length, resident only as used."""
        return dict(self.manifest.memory)

    def close(self) -> None:
        """Stop the helper threads; the runtime cannot be used afterwards."""
        self._team.close()


def _bests(program: Program) -> list[tuple[int, Region]]:
    """Where each chiplet leaves its best tokens, and the first column that it looks at."""
    selects = [c for c in program.commands if c.kind == "select"]
    places = [program.io[f"select.{program.queues[c.queue].chiplet}"] for c in selects]
    return [(int(c.attrs["first_column"]), p) for c, p in zip(selects, places, strict=True)]


def _best(shares: list[tuple[int, NDArray[np.int32]]]) -> int:
    """The best of the chiplets' bests (first column, select's words); of equals the lowest id."""
    best, argmax = -np.inf, 0
    for first_column, words in shares:
        value = float(words[:1].view(np.float32)[0])
        if value > best:
            best, argmax = value, first_column + int(words[1])
    return argmax


def load_runtime(
    directory: str | Path, threads: int | None = None, profiler: bool | None = None
) -> Runtime:
    """Open a model directory and make it ready to run on `threads` cores (default: all).

    `profiler`: always profiled (True), never (False), or when a session asks for it (None).
    """
    runtime = Runtime(open_directory(directory), threads)
    profiling.loaded(runtime, profiler)
    return runtime
