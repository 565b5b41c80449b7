"""Measure the figures of docs/accuracy.md: `python -m tools.accuracy [--write] [TABLE ...]`.

Fetches SmolLM2 and Gemma 3 (about 90 and 240 MB, cached), compiles them in every number format and
holds them against transformers, or against themselves in bf16; about a quarter of an hour on two
cores.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dielet.calibrate import choose_int8, read
from dielet.calibrate.measure import agreements
from dielet.calibrate.watch import WatchedRuntime
from dielet.generate.calibration import read_calibration
from dielet.image import CompileOptions, compile_checkpoint, open_directory, open_source
from dielet.image.accuracy import Calibration
from tests.data import gemma3_gguf, smollm2_gguf
from tests.numbers import measure, oracle
from tests.numbers.models import TINY, SmolLM2, Tiny

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"

Table = list[tuple[str, ...]]
TINY_FORMATS = (("bf16", "bf16"), ("bf16", "int8"), ("int8", "bf16"), ("int4", "bf16"))
SCORE_HEAD = ("same best token", "perplexity", "gap error, 99.9 %", "largest difference")


NUMBERS = Path(__file__).parent.parent / "tests" / "numbers"
TEXTS = ("calibration", "text")  # the one that chooses, and the one that measures
STRETCHES = 4  # of 512 tokens, of the latter
BUDGETS = (5.0, 10.0, 20.0)
WORDS = {"group": "--group 64", "minimum": "--no-minimum"}
SMOLLM2_INT4: tuple[dict[str, Any], ...] = ({}, {"group": 64}, {"minimum": False})
GEMMA3_INT4: tuple[dict[str, Any], ...] = ({},)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put them into {PAGE.name}")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="only these; default: all")
    args = parser.parse_args()
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for name, table in _tables(Path(folder), args.tables):
            text = _markdown(table)
            print(f"{name}\n\n{text}\n", flush=True)
            page = _filled(page, name, text)
    if args.write:
        PAGE.write_text(page)


def _tables(folder: Path, names: list[str]) -> Iterator[tuple[str, Table]]:
    tiny, smollm2 = Tiny(folder), SmolLM2(folder)
    tables: dict[str, Callable[[], Table]] = {
        "tiny": lambda: _tiny(tiny),
        "gguf": lambda: _gguf(smollm2),
        "greedy": lambda: _greedy(smollm2),
        "causes": lambda: _causes(smollm2),
        "cache": lambda: _cache(smollm2),
        "hugging-face": lambda: _hugging_face(smollm2),
        "calibration-smollm2": lambda: _calibration(folder, smollm2_gguf(), SMOLLM2_INT4),
        "calibration-gemma3": lambda: _calibration(folder, gemma3_gguf(), GEMMA3_INT4),
    }
    for name in names or tables:
        if name not in tables:
            raise SystemExit(f"no table '{name}'; tables: {', '.join(tables)}")
        yield name, tables[name]()
    tiny.close()
    smollm2.close()


def _tiny(tiny: Tiny) -> Table:
    tokens = np.random.default_rng(3).integers(0, 331, sum(measure.STEPS)).astype(np.int32)
    table: Table = [("model", "bf16", "bf16, int8 cache", "int8", "int4")]
    for name, (model_type, sizes) in TINY.items():
        checkpoint, model = tiny.make(model_type, **sizes)
        row = [name]
        for weights, kv in TINY_FORMATS:
            rt = tiny.load(checkpoint, weights=weights, kv=kv, chiplets=4, max_seq_len=2048)
            errors, _ = measure.walk(rt, model, tokens, measure.STEPS)
            row.append(f"{max(errors):.2%}")
        table.append(tuple(row))
    return table


def _gguf(smollm2: SmolLM2) -> Table:
    table: Table = [("weights", "formats", *SCORE_HEAD)]
    for weights in ("bf16", "int8", "int4"):
        score = smollm2.score(weights)
        if weights == "bf16":
            table.append(("oracle (f32)", "", "", f"{score.oracle_perplexity:.3f}", "", ""))
        table.append((weights, _formats(smollm2.runtime(weights)), *_figures(score)))
    return table


def _greedy(smollm2: SmolLM2) -> Table:
    table: Table = [("prompt", "weights", "same as the oracle", "oracle's gap where not")]
    for name, prompt in measure.PROMPTS.items():
        for weights in ("bf16", "int4"):
            tokens = smollm2.encode(prompt)
            answer = measure.answer(smollm2.runtime(weights), tokens)
            found = measure.judged(smollm2.oracle, tokens, answer)
            gaps = ", ".join(f"{d.gap:.3f}" for d in found)
            same = f"{len(answer) - len(found)} of {len(answer)}"
            table.append((name, weights, same, gaps))
    return table


def _causes(smollm2: SmolLM2) -> Table:
    """transformers itself, with what enters each linear rounded as the compiled model does."""

    def not_head(name: str) -> bool:
        return name != "lm_head"

    rounded: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[str], bool]]] = {
        "bf16": (lambda x: x.bfloat16().float(), lambda name: True),
        "int8, a scale for 32": (lambda x: _integers(x, 32, 127), lambda name: True),
        "int8, a scale for 32, but f32 into the head": (
            lambda x: _integers(x, 32, 127),
            not_head,
        ),
        "int8, a scale for 64": (lambda x: _integers(x, 64, 127), lambda name: True),
        "int16, a scale for 32": (lambda x: _integers(x, 32, 32767), lambda name: True),
    }
    table: Table = [("what enters each linear", *SCORE_HEAD)]
    for name, (function, where) in rounded.items():
        with _rounding(smollm2.oracle, function, where):
            emulated = oracle.all_logits(smollm2.oracle, smollm2.text)
        score = measure.compare(smollm2.text, smollm2.oracle_scores, emulated)
        table.append((name, *_figures(score)))
    return table


def _cache(smollm2: SmolLM2) -> Table:
    table: Table = [("weights", "cache", *SCORE_HEAD)]
    for weights in ("bf16", "int8", "int4"):
        for kv in ("bf16", "int8"):
            table.append((weights, kv, *_figures(smollm2.score(weights, kv))))
    return table


def _hugging_face(smollm2: SmolLM2) -> Table:
    tokens = smollm2.text
    expected = oracle.all_logits(smollm2.hugging_face_oracle, tokens)
    table: Table = [("options", "formats", *SCORE_HEAD)]
    for options in [
        "--weights bf16",
        "--weights int8",
        "--weights int8 --group 32",
        "--weights int8 --group 64",
        "--weights int4",
        "--weights int4 --group 64",
        "--weights int4 --no-minimum",
        "--weights int4 --group 64 --no-minimum",
    ]:
        words = options.split()
        rt = smollm2.load(
            smollm2.hugging_face,
            weights=words[1],
            group=int(words[3]) if "--group" in words else None,
            minimum=False if "--no-minimum" in words else None,
            chiplets=4,
            max_seq_len=4096,
        )
        score = measure.compare(tokens, expected, measure.forced(rt, tokens))
        if len(table) == 1:
            table.append(("oracle (f32)", "", "", f"{score.oracle_perplexity:.3f}", "", ""))
        table.append((f"`{options}`", _formats(rt), *_figures(score)))
    return table


def _calibration(folder: Path, gguf: Path, kinds: tuple[dict[str, Any], ...]) -> Table:
    """Every kind of int4 plain, calibrated, and with int8 budgets, beside the model in bf16, over
    a text that is not the one that chose."""
    common: dict[str, Any] = {"max_seq_len": 512, "kv_ladder": (512,), "chiplets": 1}
    checkpoint = open_source(gguf, CompileOptions())

    def loaded(options: CompileOptions, calibration: Calibration) -> WatchedRuntime:
        out = compile_checkpoint(checkpoint, folder / "calibrated", options, None, calibration)
        return WatchedRuntime(open_directory(out), threads=2)

    reference = loaded(CompileOptions(weights="bf16", **common), Calibration())
    texts = [read_calibration(checkpoint, NUMBERS / f"{name}.txt") for name in TEXTS]
    seen = read(reference, texts[0].choosing, lambda line: None)
    rows: list[tuple[str, WatchedRuntime]] = []
    for kind in kinds:
        plain = CompileOptions(weights="int4", **kind, **common)
        asked = " ".join(["--weights int4", *(WORDS[name] for name in kind)])
        rows.append((f"`{asked}`", loaded(plain, Calibration())))
        rows.append(("with `--calibrate`", loaded(plain, Calibration(seen.importance()))))
        for budget in BUDGETS if kind or len(kinds) == 1 else ():
            int8 = choose_int8(checkpoint, plain, seen, budget)
            calibration = Calibration(seen.importance(), int8)
            rows.append((f"and `--int8-budget {budget:g}%`", loaded(plain, calibration)))
    int8_options = CompileOptions(weights="int8", group=32, **common)
    rows.append(("`--weights int8 --group 32`", loaded(int8_options, Calibration())))
    nothing: list[Any] = [_Unseen()] * (1 + len(rows))
    runtimes = [rt for _, rt in rows]
    found = agreements(reference, runtimes, texts[1].choosing[:STRETCHES], nothing)
    table: Table = [("options", "linears", "size", "same best token", "mean KL")]
    for (name, rt), agreement in zip(rows, found, strict=True):
        nbytes = sum(share.nbytes for share in rt.files.decoder.table.shares if share.K)
        formats = ", ".join(f"{n} x {fmt}" for fmt, n in rt.manifest.formats.items())
        same, kl = f"{agreement.same_best_token:.2%}", f"{agreement.mean_kl:.4f}"
        table.append((name, formats, f"{nbytes / 1e6:.1f} MB", same, kl))
    for rt in (reference, *runtimes):
        rt.close()
    return table


class _Unseen:
    def see(self, parameters: tuple[str, ...], x: Any) -> None:
        """Nothing is kept of what enters the linears."""


def _figures(score: measure.Score) -> tuple[str, ...]:
    return (
        f"{score.agreement:.2%}",
        f"{score.perplexity:.3f}",
        f"{score.measured_error:.3f}",
        f"{score.relative.max():.1%}",
    )


def _formats(rt: Any) -> str:
    """Of the linears, then of the embedding, which the head shares."""
    return f"{', '.join(rt.manifest.formats)}; {rt.manifest.embedding_format}"


def _integers(x: torch.Tensor, group: int, largest: int) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, group))
    scale = (groups.abs().amax(-1, keepdim=True) / largest).clamp(min=1e-30)
    return (torch.round(groups / scale) * scale).flatten(-2)


@contextmanager
def _rounding(
    model: Any, function: Callable[[torch.Tensor], torch.Tensor], where: Callable[[str], bool]
) -> Iterator[None]:
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: (function(inputs[0]),))
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and where(name)
    ]
    yield
    for hook in hooks:
        hook.remove()


def _markdown(table: Table) -> str:
    head, *rows = table
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _filled(page: str, name: str, text: str) -> str:
    """The page with what stands between the marks of that name replaced."""
    marks = rf"(<!-- figures: {name} -->\n).*?(<!-- end -->)"
    filled, count = re.subn(marks, lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE} has no '<!-- figures: {name} --> ... <!-- end -->'")
    return filled


if __name__ == "__main__":
    main()
