"""Measure the figures of docs/accuracy.md: `python -m tools.accuracy [--write] [TABLE ...]`.

Fetches SmolLM2 (about 90 MB, cached), compiles it in every number format and holds it against
transformers; about ten minutes on two cores.
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

from tests.numbers import measure, oracle
from tests.numbers.models import TINY, SmolLM2, Tiny

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"

Table = list[tuple[str, ...]]
TINY_FORMATS = (("bf16", "bf16"), ("bf16", "int8"), ("int8", "bf16"), ("int4", "bf16"))
SCORE_HEAD = ("same best token", "perplexity", "gap error, 99.9 %", "largest difference")


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
