"""Everything about a compiled model that is known before a single weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from dielet.checkpoint.names import EMBEDDING, ROUTER
from dielet.checkpoint.names import HEAD as HEAD_PARAMETER
from dielet.checkpoint.spec import ModelSpec
from dielet.devices import Device, load_device, resized
from dielet.errors import UsageError
from dielet.formats.packed import WeightFormat
from dielet.graph import Graph, assign_formats, fuse, matrices, verify_graph
from dielet.image.capacity import check_capacity, check_shared, memory_by_chiplet
from dielet.image.formats import Stored, choose_format, default_weights, int8_beside
from dielet.image.options import HEAD_ROWS, CompileOptions
from dielet.models import build_decoder, build_head
from dielet.partition import Division, divide
from dielet.program import KvLayout, Placement, Program, Shape, WeightPlan, plan_weights
from dielet.program.lower import lower
from dielet.program.sending import kv_slots
from dielet.program.sync import synchronise
from dielet.program.types import Phase


@dataclass(frozen=True)
class ModelPlan:
    """The programs of a model, and where every byte of weights, cache and activations goes."""

    spec: ModelSpec
    device: Device
    chiplets: int
    weights: str
    max_seq_len: int
    prefill_chunk: int
    ladder: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    formats: Mapping[str, WeightFormat]
    decoder: WeightPlan
    head: WeightPlan
    embedding: WeightFormat
    kv: KvLayout
    chiplet_bytes: tuple[int, ...]  # DRAM that each chiplet needs; nothing on a host
    programs: tuple[Program, ...]

    @property
    def embedding_bytes(self) -> int:
        return self.embedding.nbytes(self.spec.vocab, self.spec.hidden)

    @property
    def table_bytes(self) -> int:
        """cos and sin together."""
        return self.kv.positions * self.spec.head_dim * 4 * len(self.spec.rotations)

    @property
    def activation_bytes(self) -> int:
        """The largest arenas of any program, inputs and outputs included."""
        sizes = {p.name: sum(p.sizes.values()) - p.sizes["kv"] for p in self.programs}
        decoders = [sizes[p.name] for p in self.programs if p.phase != "head"]
        return max(decoders) + max(sizes[p.name] for p in self.programs if p.phase == "head")

    def memory_by_owner(self) -> dict[str, int]:
        """Bytes at run time; `kv` is the cache of one sequence at full length."""
        return {
            "decoder weights": self.decoder.nbytes,
            "head weights": self.head.nbytes,
            "embedding": self.embedding_bytes,
            "rotary tables": self.table_bytes,
            "kv": self.kv.nbytes,
            "activations": self.activation_bytes,
        }


def plan_model(
    spec: ModelSpec,
    tensors: Mapping[str, Stored],
    options: CompileOptions,
    int8: frozenset[str] = frozenset(),
) -> ModelPlan:
    """Compile `spec` up to its programs; `tensors` are the checkpoint's, by canonical name.

    `int8`: the linears of an int4 model that are kept in int8.  Raises CapacityError when the
    device has too little memory.
    """

    def planned(**changes: Any) -> Planner:
        return Planner(spec, tensors, replace(options, **changes), int8=int8)

    planner = planned()
    check_capacity(planner, planned)
    programs = planner.programs()
    check_shared(planner, programs, planned)
    return planner.plan(programs)


class Planner:
    """The layout of a model's memory, and its programs as they are asked for."""

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Mapping[str, Stored],
        options: CompileOptions,
        device: Device | None = None,
        int8: frozenset[str] = frozenset(),
    ) -> None:
        """`device`: instead of the one that the options name.  `int8`: as for `plan_model`."""
        if options.layers is not None:
            if options.layers > spec.layers:
                raise UsageError(
                    f"layers {options.layers}: the model has {spec.layers}; "
                    f"use at most {spec.layers}"
                )
            spec = spec.first(options.layers)
        self.spec = spec
        self.device = resized(
            device or load_device(options.device), options.num_devices, options.chiplets
        )
        self.partition = options.partition or self.device.partition
        self.chiplets = self.device.devices * self.device.chiplets
        self.max_seq_len = options.resolved_max_seq_len(spec.max_position, spec.longest_text)
        self.ladder = options.resolved_ladder(self.max_seq_len)
        self.chunk = options.prefill_chunk
        self.batch_sizes = options.resolved_batch_sizes()
        graph = fuse(build_decoder(spec, 1))
        self.formats, self.weights = _formats(spec, tensors, graph, options, int8)
        decode, head = self._divided(build_decoder(spec, 1)), self._divided(build_head(spec))
        tied = frozenset({HEAD_PARAMETER}) if spec.tied else frozenset[str]()
        self.decoder = plan_weights(decode, self.formats, "weights", frozenset())
        self.head = plan_weights(head, self.formats, "head", tied)
        self.table = _table_plan(head, self.formats) if spec.tied else None
        # Where each chiplet's KV heads begin, then how many are held; nothing on a host.
        self.kv_slots = kv_slots(decode) if self.device.local_memory else ()
        held = self.kv_slots[-1] if self.kv_slots else 0
        self.kv = KvLayout.of(spec, self.max_seq_len, held, options.kv or "bf16")
        self._divisions: dict[tuple[Phase, int], Division] = {}

    def programs(self) -> tuple[Program, ...]:
        """All of them: prefill and decode at every capacity, then the heads."""
        found = self._rungs([Shape("prefill", self.chunk, rung) for rung in self.ladder])
        for size in self.batch_sizes:
            found += self._rungs([Shape("decode", size, rung) for rung in self.ladder])
        return (*found, *map(self.program, self.heads()))

    def heads(self) -> list[Shape]:
        return [Shape("head", rows) for rows in sorted({*self.batch_sizes, HEAD_ROWS})]

    def program(self, shape: Shape) -> Program:
        return synchronise(self._lowered(shape))

    def plan(self, programs: tuple[Program, ...]) -> ModelPlan:
        return ModelPlan(
            spec=self.spec,
            device=self.device,
            chiplets=self.chiplets,
            weights=self.weights,
            max_seq_len=self.max_seq_len,
            prefill_chunk=self.chunk,
            ladder=self.ladder,
            batch_sizes=self.batch_sizes,
            formats=self.formats,
            decoder=self.decoder,
            head=self.head,
            embedding=self.formats[EMBEDDING],
            kv=self.kv,
            chiplet_bytes=tuple(sum(owners.values()) for owners in memory_by_chiplet(self)),
            programs=programs,
        )

    def _divided(self, graph: Graph) -> Division:
        typed = assign_formats(fuse(graph), self.formats)
        verify_graph(typed)
        return divide(typed, self.partition, self.chiplets, self.device.local_memory)

    def _lowered(self, shape: Shape) -> Program:
        key = shape.phase, shape.tokens
        if key not in self._divisions:
            build = build_head if shape.phase == "head" else build_decoder
            self._divisions[key] = self._divided(build(self.spec, shape.tokens))
        placement = (
            Placement(self.head, self.kv, self.table)
            if shape.phase == "head"
            else Placement(self.decoder, self.kv)
        )
        return lower(self._divisions[key], shape, self.device, placement)

    def _rungs(self, shapes: list[Shape]) -> list[Program]:
        """One program per capacity.  Where all chiplets share a memory they differ in bytes of
        cache only, so waits are found once."""
        if self.device.local_memory:
            return [self.program(shape) for shape in shapes]
        lowered = [self._lowered(shape) for shape in shapes]
        first = synchronise(lowered[0])
        return [_with_waits_of(first, program) for program in lowered]


def _formats(
    spec: ModelSpec,
    tensors: Mapping[str, Stored],
    graph: Graph,
    options: CompileOptions,
    int8: frozenset[str],
) -> tuple[dict[str, WeightFormat], str]:
    """The format of every linear and of the embedding; a tied head has the embedding's."""
    linears = {name: tensors[name] for n in graph.nodes for name in matrices(n)}
    weights = options.weights or default_weights(linears)
    group, minimum = options.group, options.minimum
    formats = {name: choose_format(name, t, weights, group, minimum) for name, t in linears.items()}
    formats |= {
        name: int8_beside(name, linears[name], formats[name])
        for name in int8 & set(formats)
        if formats[name].kind == "int4"
    }
    # Which experts are chosen hangs on small differences, and the router is small.
    formats |= {name: WeightFormat("bf16") for name in linears if name.endswith(ROUTER)}
    formats[EMBEDDING] = choose_format(EMBEDDING, tensors[EMBEDDING], weights, group, minimum, True)
    formats[HEAD_PARAMETER] = (
        formats[EMBEDDING]
        if spec.tied
        else choose_format(HEAD_PARAMETER, tensors[HEAD_PARAMETER], weights, group, minimum, True)
    )
    return formats, weights


def _table_plan(head: Division, formats: Mapping[str, WeightFormat]) -> WeightPlan:
    """The tied head's shares, which lie one after the other in the embedding table."""
    norms = frozenset(p for n in head.graph.nodes if n.op != "linear" for p in n.params)
    return plan_weights(head, formats, "embedding", norms)


def _with_waits_of(other: Program, program: Program) -> Program:
    commands = tuple(
        msgspec.structs.replace(c, deps=o.deps, waits=o.waits, signals=o.signals)
        for c, o in zip(program.commands, other.commands, strict=True)
    )
    return msgspec.structs.replace(program, commands=commands)
