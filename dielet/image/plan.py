"""Everything about a compiled model that is known before a single weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dielet.checkpoint.names import EMBEDDING
from dielet.checkpoint.names import HEAD as HEAD_PARAMETER
from dielet.checkpoint.spec import ModelSpec
from dielet.devices import Device, load_device
from dielet.errors import UsageError
from dielet.formats.packed import WeightFormat
from dielet.graph import Graph, assign_formats, fuse, verify_graph
from dielet.image.formats import Stored, choose_format, default_weights
from dielet.image.options import CompileOptions
from dielet.models import build_decoder, build_head
from dielet.partition import Division, divide
from dielet.program import KvLayout, Placement, Program, Shape, WeightPlan, lower, plan_weights
from dielet.program.sync import synchronise

HEAD_ROWS = 16  # tokens whose logits one pass can give, for checking several guesses at once


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
    programs: tuple[Program, ...]

    @property
    def embedding_bytes(self) -> int:
        return self.embedding.nbytes(self.spec.vocab, self.spec.hidden)

    @property
    def table_bytes(self) -> int:
        """cos and sin together."""
        return 2 * self.kv.positions * self.spec.head_dim // 2 * 4

    @property
    def activation_bytes(self) -> int:
        """The largest arena of any program, inputs and outputs included."""
        decoders = [p.sizes["shared"] + p.sizes["io"] for p in self.programs if p.phase != "head"]
        heads = [p.sizes["shared"] + p.sizes["io"] for p in self.programs if p.phase == "head"]
        return max(decoders) + max(heads)

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
    spec: ModelSpec, tensors: Mapping[str, Stored], options: CompileOptions
) -> ModelPlan:
    """Compile `spec` up to its programs; `tensors` are the checkpoint's, by canonical name."""
    if options.layers is not None:
        if options.layers > spec.layers:
            raise UsageError(
                f"layers {options.layers}: the model has {spec.layers}; use at most {spec.layers}"
            )
        spec = msgspec.structs.replace(spec, layers=options.layers)
    device = load_device(options.device)
    chiplets = options.chiplets or device.chiplets
    max_seq_len = options.resolved_max_seq_len(spec.max_position)
    ladder = options.resolved_ladder(max_seq_len)
    formats, weights = _formats(spec, tensors, fuse(build_decoder(spec, 1)), options)
    embedding = formats[EMBEDDING]

    def divided(graph: Graph) -> Division:
        typed = assign_formats(fuse(graph), formats)
        verify_graph(typed)
        return divide(typed, device.partition, chiplets)

    decode, head = divided(build_decoder(spec, 1)), divided(build_head(spec))
    tied = frozenset({HEAD_PARAMETER}) if spec.tied else frozenset[str]()
    decoder_weights = plan_weights(decode, formats, "weights", frozenset())
    head_weights = plan_weights(head, formats, "head", tied)
    table = _table_plan(head, formats) if spec.tied else None
    kv = KvLayout.of(spec, max_seq_len)

    chunk = options.prefill_chunk
    batch_sizes = options.resolved_batch_sizes()
    placement, head_placement = Placement(decoder_weights, kv), Placement(head_weights, kv, table)
    programs: list[Program] = []
    for shape in (Shape("prefill", chunk), *(Shape("decode", size) for size in batch_sizes)):
        division = divided(build_decoder(spec, shape.tokens))
        programs += _rungs(division, shape, ladder, device, placement)
    for rows in sorted({*batch_sizes, HEAD_ROWS}):
        division = divided(build_head(spec, rows))
        programs.append(synchronise(lower(division, Shape("head", rows), device, head_placement)))
    return ModelPlan(
        spec=spec,
        device=device,
        chiplets=chiplets,
        weights=weights,
        max_seq_len=max_seq_len,
        prefill_chunk=chunk,
        ladder=ladder,
        batch_sizes=batch_sizes,
        formats=formats,
        decoder=decoder_weights,
        head=head_weights,
        embedding=embedding,
        kv=kv,
        programs=tuple(programs),
    )


def _formats(
    spec: ModelSpec, tensors: Mapping[str, Stored], graph: Graph, options: CompileOptions
) -> tuple[dict[str, WeightFormat], str]:
    """The format of every linear and of the embedding; a tied head has the embedding's."""
    linears = {n.params[0]: tensors[n.params[0]] for n in graph.nodes if n.op == "linear"}
    weights = options.weights or default_weights(linears)
    group = options.group
    formats = {name: choose_format(name, t, weights, group) for name, t in linears.items()}
    formats[EMBEDDING] = choose_format(EMBEDDING, tensors[EMBEDDING], weights, group, table=True)
    formats[HEAD_PARAMETER] = (
        formats[EMBEDDING]
        if spec.tied
        else choose_format(HEAD_PARAMETER, tensors[HEAD_PARAMETER], weights, group, table=True)
    )
    return formats, weights


def _table_plan(head: Division, formats: Mapping[str, WeightFormat]) -> WeightPlan:
    """The tied head's shares, which lie one after the other in the embedding table."""
    norms = frozenset(p for n in head.graph.nodes if n.op != "linear" for p in n.params)
    return plan_weights(head, formats, "embedding", norms)


def _rungs(
    division: Division,
    shape: Shape,
    ladder: tuple[int, ...],
    device: Device,
    placement: Placement,
) -> list[Program]:
    """One program per capacity.  They differ in bytes of cache only, so waits are found once."""
    first: Program | None = None
    programs = []
    for capacity in ladder:
        program = lower(division, Shape(shape.phase, shape.tokens, capacity), device, placement)
        first = first or synchronise(program)
        programs.append(_with_waits_of(first, program))
    return programs


def _with_waits_of(other: Program, program: Program) -> Program:
    commands = tuple(
        msgspec.structs.replace(c, deps=o.deps, waits=o.waits, signals=o.signals)
        for c, o in zip(program.commands, other.commands, strict=True)
    )
    return msgspec.structs.replace(program, commands=commands)
