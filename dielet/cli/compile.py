"""Compile a checkpoint into a model directory."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console, duration, size, table
from dielet.cli.models import compile_into
from dielet.cli.parser import add_revision, at_revision, percent, place, whole_numbers
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.checkpoint.base import Checkpoint
    from dielet.image import CompileOptions, ModelPlan

HELP = "compile a checkpoint into a model directory"
SAMPLE_WEIGHTS = 1 << 22  # converted for real, to estimate how long all will take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "src", type=place, metavar="SRC", help="HF directory, hub id, or .gguf file"
    )
    add_revision(parser)
    parser.add_argument(
        "-o", "--out", type=place, metavar="DIR",
        help="the model directory to write; a link is followed",
    )  # fmt: skip
    parser.add_argument(
        "--device", type=place, default="host", metavar="NAME|PATH.toml",
        help="default: host, this machine",
    )  # fmt: skip
    parser.add_argument("--chiplets", type=int, metavar="N", help="default: as the device has")
    parser.add_argument(
        "--num-devices",
        type=int,
        metavar="N",
        help="devices that share the model; default: its own",
    )
    parser.add_argument(
        "--partition", choices=("column", "column_row"),
        help="how linears are divided over chiplets; default: as the device file says",
    )  # fmt: skip
    parser.add_argument("--weights", choices=("bf16", "int8", "int4"), help="number format")
    parser.add_argument("--group", type=int, metavar="32|64|128", help="weights per scale")
    parser.add_argument(
        "--minimum", action=argparse.BooleanOptionalAction, default=None,
        help="an offset beside the scale; default: int4 has one, int8 has not",
    )  # fmt: skip
    parser.add_argument(
        "--max-seq-len", type=int, metavar="N",
        help="prompt and answer together; default: the model's, at most 8192",
    )  # fmt: skip
    parser.add_argument(
        "--prefill-chunk", type=int, metavar="N", help="prompt tokens per program; default: 128"
    )
    parser.add_argument(
        "--kv-ladder", type=whole_numbers, metavar="N,N,...",
        help="KV capacities with programs of their own; default: 512,1024,...",
    )  # fmt: skip
    parser.add_argument(
        "--kv", choices=("bf16", "int8"),
        help="number format of the key and value cache; default: bf16, int8 takes half the memory",
    )  # fmt: skip
    parser.add_argument(
        "--batch-sizes", type=whole_numbers, metavar="N,N,...",
        help="sequences decoded together, each with programs of its own; default: 1",
    )  # fmt: skip
    parser.add_argument(
        "--roles", type=place, metavar="FILE.toml",
        help="how a checkpoint of an unknown family names its tensors and settings",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate", type=place, metavar="FILE",
        help="a text of a few thousand words, by which int4 scales are chosen; its end measures",
    )  # fmt: skip
    parser.add_argument(
        "--int8-budget", type=percent, metavar="PERCENT",
        help="with --calibrate: linears that lose most stay int8; all grow by at most so much",
    )  # fmt: skip
    parser.add_argument("--layers", type=int, metavar="N", help="only the first N")
    parser.add_argument(
        "--random-weights", type=int, metavar="SEED", help="SRC may then be a bare config.json"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="sizes, time and memory; nothing is written"
    )


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.image import CompileOptions, open_source

    given = {f.name: getattr(args, f.name) for f in fields(CompileOptions) if hasattr(args, f.name)}
    options = CompileOptions.of(**{name: v for name, v in given.items() if v is not None})
    if args.out is None and not args.dry_run:
        raise UsageError("-o DIR is needed: the model directory to write (or --dry-run)")
    checkpoint = open_source(at_revision(args.src, args.revision), options)
    if args.dry_run:
        dry_run(checkpoint, options, console)
        return
    out = Path(args.out)
    seconds = compile_into(checkpoint, out, options, console)
    finished(out, seconds, console)


def finished(out: Path, seconds: float, console: Console) -> None:
    from dielet.cli.accuracy import layer_lines, summary, totals
    from dielet.image import read_manifest
    from dielet.image.accuracy import read_accuracy
    from dielet.image.names import ACCURACY

    manifest = read_manifest(out)
    accuracy = read_accuracy(out) if ACCURACY in manifest.files else None
    nbytes = {name: entry.nbytes for name, entry in manifest.files.items()}
    console.result(
        {
            "directory": str(out),
            "seconds": seconds,
            "device": manifest.device,
            "chiplets": manifest.chiplets,
            "weights": manifest.weights,
            "formats": manifest.formats,
            "kv": manifest.kv_format,
            "max_seq_len": manifest.max_seq_len,
            "programs": [program.name for program in manifest.programs],
            "bytes": nbytes,
            "memory": manifest.memory,
            **({"accuracy": totals(accuracy)} if accuracy else {}),
        }
    )
    formats = ", ".join(f"{count} x {name}" for name, count in manifest.formats.items())
    rows = {
        "directory": f"{out} ({size(sum(nbytes.values()))})",
        "weights": f"{formats}; embedding {manifest.embedding_format}; cache {manifest.kv_format}",
        **({"accuracy": summary(accuracy)} if accuracy else {}),
        "programs": f"{len(manifest.programs)}, for {manifest.chiplets} chiplets of "
        f"{manifest.device}, up to {manifest.max_seq_len} tokens",
        "next": f'dielet run {out} -p "who are you"',
    }
    for line in layer_lines(accuracy) if accuracy else ():
        console.detail(line)
    console.out(table(rows))


def dry_run(checkpoint: Checkpoint, options: CompileOptions, console: Console) -> None:
    from dielet.generate.calibration import read_calibration
    from dielet.generate.compiling import check_text
    from dielet.image import plan_checkpoint

    check_text(checkpoint)
    if options.calibrate is not None:
        read_calibration(checkpoint, Path(options.calibrate))  # refused now, not after an hour
    plan = plan_checkpoint(checkpoint, options)
    nbytes = {
        "decoder_model_fixed.img": plan.decoder.nbytes,
        "norm_head_fixed.img": plan.head.nbytes,
        "token_embedding_weight.npy": plan.embedding_bytes,
        "cos_weight.npy and sin_weight.npy": plan.table_bytes,
    }
    seconds = estimated_seconds(checkpoint, plan)
    memory = plan.memory_by_owner()
    console.result(
        {
            "dry_run": True,
            "device": plan.device.name,
            "chiplets": plan.chiplets,
            "weights": plan.weights,
            "kv": plan.kv.format,
            "max_seq_len": plan.max_seq_len,
            "programs": [program.name for program in plan.programs],
            "bytes": nbytes,
            "memory": memory,
            "chiplet_bytes": list(plan.chiplet_bytes),
            "seconds": seconds,
        }
    )
    disk = {f"  {name}": size(n) for name, n in nbytes.items()}
    run_time = {f"  {name}": size(n) for name, n in memory.items()}
    rows: dict[str, Any] = {
        "model": f"{plan.spec.name or plan.spec.model_type}, {plan.weights} weights, "
        f"{plan.kv.format} cache",
        "programs": f"{len(plan.programs)}, for {plan.chiplets} chiplets of {plan.device.name}, "
        f"up to {plan.max_seq_len} tokens",
        "on disk": size(sum(nbytes.values())),
        **disk,
        "memory when run": f"{size(sum(memory.values()))}, with one full sequence",
        **run_time,
        **_per_chiplet(plan),
        "time to compile": f"about {duration(seconds)}"
        + (", calibration not counted" if options.calibrate else ""),
        **_budget(options),
    }
    console.out(table(rows))


def _budget(options: CompileOptions) -> dict[str, str]:
    """Which linears stay in int8 is known only once the text has been read."""
    if options.int8_budget is None:
        return {}
    return {"int8 budget": f"up to {options.int8_budget:g} % more for the decoder's weights"}


def _per_chiplet(plan: ModelPlan) -> dict[str, str]:
    """What the fullest chiplet of a device with memories of their own needs of its DRAM."""
    if not plan.chiplet_bytes:
        return {}
    room = plan.device.memory["dram"].size
    return {"DRAM of a chiplet": f"{size(max(plan.chiplet_bytes))} of {size(room)}"}


def estimated_seconds(checkpoint: Checkpoint, plan: ModelPlan) -> float:
    """Seconds that converting all weights will take, by converting some of each format."""
    from dielet.image.compile import packed_bytes

    spent: dict[str, tuple[float, int]] = {}  # format -> seconds and weights of its sample
    total = 0.0
    for name in checkpoint.names():
        fmt = plan.formats.get(name)
        if fmt is None:
            continue
        source = checkpoint.tensor(name)
        if fmt.name not in spent:
            rows = min(source.N, max(32, SAMPLE_WEIGHTS // source.K // 32 * 32))
            begin = perf_counter()
            for _ in packed_bytes(source, fmt, 0, rows):
                pass
            spent[fmt.name] = (perf_counter() - begin, rows * source.K)
        seconds, weights = spent[fmt.name]
        total += seconds * source.N * source.K / weights
    return total
