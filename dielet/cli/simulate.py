"""Predict how fast a model answers on a described device; nothing is executed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dielet.cli.console import Console, duration, size, table
from dielet.cli.parser import add_compress, add_revision, at_revision, place
from dielet.errors import UsageError

if TYPE_CHECKING:
    from dielet.devices import Device
    from dielet.simulator import Prediction
    from dielet.simulator.sweep import Sweep

HELP = "predict the speed of a model on a described device"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=place, metavar="DIR|SRC|config.json", help="a model; weights are not needed"
    )
    add_revision(parser)
    parser.add_argument(
        "--device", type=place, default="rebel100", metavar="NAME|PATH.toml",
        help="default: rebel100",
    )  # fmt: skip
    parser.add_argument("--prompt-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N", help="default: 128")
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="sequences decoded together; default: 1"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N",
        help="workers of a device whose chiplets share one memory; default: one per chiplet",
    )  # fmt: skip
    parser.add_argument("--weights", choices=("bf16", "int8", "int4"), help="number format")
    parser.add_argument("--kv", choices=("bf16", "int8"), help="that of the key and value cache")
    parser.add_argument("--max-seq-len", type=int, metavar="N", help="prompt and answer together")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE,...",
        help="change a figure of the device (memory.dram.bandwidth='0.6 TB/s', or x0.5 of what it "
        "is) or of the model (chiplets, partition, weights, layers, kv_heads, prompt_tokens, ...); "
        "with several values or names, every combination is tried",
    )  # fmt: skip
    parser.add_argument(
        "--profile", nargs="?", const=".", metavar="DIR",
        help="leave a trace of every predicted command in DIR; default: here",
    )  # fmt: skip
    add_compress(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the combinations as CSV")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw the combinations")
    parser.add_argument(
        "--sensitivity", action="store_true",
        help="halve and double every assumed figure of the device, and say which matters most",
    )  # fmt: skip


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.simulator import simulate
    from dielet.simulator.model import Lowered, open_source
    from dielet.simulator.sweep import parse_settings, sweep

    options = _options(args)
    settings = parse_settings(args.set)
    several = any(len(values) > 1 for values in settings.values())
    if args.sensitivity and (several or args.csv or args.plot):
        raise UsageError(
            "--sensitivity varies the assumed figures itself and prints a table: give --set one "
            "value per name, and leave --csv and --plot out"
        )
    if args.plot and not args.plot.lower().endswith(".svg"):
        raise UsageError(f"--plot {args.plot}: pictures are SVG; give a name that ends in .svg")
    if (args.csv or args.plot) and not settings:
        raise UsageError("--csv and --plot need something to vary: give --set NAME=VALUE,VALUE")
    if args.profile is not None and (several or args.sensitivity):
        raise UsageError("--profile draws one prediction; give --set one value per name")
    source = open_source(at_revision(args.model, args.revision), options)
    device = _device(args.device, console)

    lowered: Lowered = {}

    def predict(changes: dict[str, str]) -> Prediction:
        return simulate(
            source,
            device,
            args.prompt_tokens,
            args.new_tokens,
            batch=args.batch,
            threads=args.threads,
            changes=changes,
            lowered=lowered,
        )

    if args.sensitivity:
        _sensitivity(device, {name: values[0] for name, values in settings.items()}, predict,
                     console)  # fmt: skip
        return
    swept = sweep(settings, predict)
    predicted = next(p.prediction for p in swept.points if p.prediction)  # at least one fits
    if several or args.csv or args.plot:
        _show_sweep(swept, args, console)
    else:
        _show_one(predicted, console)
    if args.profile is not None:
        _write_profile(predicted, args, console)


def _write_profile(p: Prediction, args: argparse.Namespace, console: Console) -> None:
    from dielet.profiler.modelled import write_modelled

    written = write_modelled(
        [*p.executions()], p.device, args.profile, model=p.model, compress=args.compress
    )
    console.note(f"\nprofile: {written.files[0]} (open it at https://ui.perfetto.dev)")


def _device(name: str, console: Console) -> Device:
    from dielet.simulator.calibrated import calibrated_host, named_device

    if name == "host" and calibrated_host() is None:
        console.note(
            "the host's built-in figures are those of another machine; "
            "run `dielet devices host --calibrate`"
        )
    return named_device(name)


def _options(args: argparse.Namespace) -> Any:
    from dielet.image import CompileOptions

    given: dict[str, Any] = {n: getattr(args, n) for n in ("weights", "kv", "max_seq_len")}
    sizes = {value for value in (args.batch,) if value > 1}
    for text in args.set:
        name, _, values = text.partition("=")
        if name == "batch":
            sizes |= {int(value) for value in values.split(",") if value.isdigit()}
    if sizes:
        given["batch_sizes"] = tuple(sorted(sizes))
    return CompileOptions.of(**{name: value for name, value in given.items() if value is not None})


def _show_one(p: Prediction, console: Console) -> None:
    found = p.to_dict()
    console.result(found)
    where = f"{p.device.devices} x " if p.device.devices > 1 else ""
    rows = {
        "model": p.model,
        "device": f"{where}{p.device.name}, {p.device.chiplets} chiplets, modelled",
        "first token": f"{duration(p.ttft_s)} after a prompt of {p.prompt_tokens}",
        "per token": f"{duration(p.tpot_s)}, {p.decode_tok_s:.1f} tokens/s",
        "bound by": _shares(p.bound_by),
        "bytes": ", ".join(f"{name} {size(n)}" for name, n in found["bytes"].items()),
        "by context": ", ".join(
            f"{c['context']:.0f}: {c['decode_tok_s']:.1f} tok/s" for c in found["context"]
        ),
    }
    console.out(table(rows))
    for name, program in found["programs"].items():
        console.out()
        console.out(
            f"{name}: {duration(program['seconds'])}, run {program['runs']} times, "
            f"{program['commands']} commands; {_shares(program['bound_by'])}"
        )
        whole = 1e12 * program["seconds"] or 1.0
        engines = {
            f"  {engine['name']}": f"busy {engine['busy_ps'] / whole:4.0%}  "
            f"waiting {engine['waiting_ps'] / whole:4.0%}"
            for engine in program["engines"]
        }
        console.out(table(engines))


def _show_sweep(swept: Sweep, args: argparse.Namespace, console: Console) -> None:
    from dielet.files import write_whole

    if args.csv:
        write_whole(Path(args.csv), swept.csv().encode())
    if args.plot:
        write_whole(Path(args.plot), swept.svg().encode())
    if console.as_json:
        points = [
            {
                "set": dict(zip(swept.names, p.values, strict=True)),
                **(p.prediction.to_dict(False) if p.prediction else {"problem": p.problem}),
            }
            for p in swept.points
        ]
        name = next(p.prediction.device.name for p in swept.points if p.prediction)
        console.result({"device": name, "points": points})
    console.out(swept.table())


def _sensitivity(device: Device, changes: dict[str, str], predict: Any, console: Console) -> None:
    from dielet.simulator.sensitivity import sensitivity

    found = sensitivity(device, changes, predict)
    console.result({"device": device.name, "sensitivity": found})
    console.out("times with each assumed figure halved and doubled, in multiples of now")
    cells = {}
    for row in found:
        tpot, ttft = (
            f"x{row[f'{name}_half']:.2f} x{row[f'{name}_double']:.2f}" for name in ("tpot", "ttft")
        )
        cells[row["figure"]] = f"{row['value']:>12}   per token {tpot}   first token {ttft}"
    console.out(table(cells))


def _shares(shares: dict[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in ranked if share >= 0.005)
