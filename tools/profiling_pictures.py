"""Make the pictures of docs/profiling.md anew: traces first, then drawings of them.

    python -m tools.profiling_pictures [MODEL_DIR]

The modelled ones are of the seed's example, Qwen3-1.7B on four chiplets.  With a model directory
compiled for this machine, the measured one is made too; it needs a tokenizer, for it talks.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from dielet.errors import DieletError
from dielet.profiler.modelled import write_modelled
from dielet.profiler.reader import Trace, read_trace
from dielet.profiler.session import Session
from dielet.simulator import simulate
from tools.draw_trace import Options, Picture, draw, rows_of

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests/simulator/configs/qwen3-1.7b.json"
PICTURES = ROOT / "docs/pictures"


def span(trace: Trace, *texts: str) -> tuple[int, int]:
    """From the first to the last slice whose name contains one of `texts`."""
    number = np.array([any(text in name for text in texts) for name in trace.texts])
    found = np.flatnonzero(number[trace.name])
    return int(trace.start[found].min()), int((trace.start + trace.duration)[found].max())


def picture(
    name: str,
    trace: Trace,
    title: str,
    begin: int,
    end: int,
    rows: tuple[str, ...] = (),
    mark: str = "",
    arrows: str = "",
) -> None:
    options = Options(mark=mark, arrows=arrows)
    svg = draw(trace, Picture(begin, end, title), rows_of(trace, list(rows)), options)
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(PICTURES / f"{name}.svg")


def modelled(folder: Path) -> None:
    answer = simulate(CONFIG, "rebel100", 20, 4, weights="bf16", max_seq_len=8192)
    written = write_modelled([*answer.executions()], answer.device, folder, model=answer.model)
    merged, prefill, decode = (read_trace(path) for path in written.files[:3])
    picture(
        "qwen3-whole", merged,
        "Qwen3-1.7B on rebel100, modelled: one prefill, three decode steps, each with its head",
        0, int((merged.start + merged.duration).max()),
    )  # fmt: skip
    begin, end = span(prefill, "layers.0.self_attn.q_proj")
    picture(
        "qwen3-q-proj", prefill,
        "layers.0.self_attn.q_proj: its weights on four Neural DMA tracks, then four products",
        begin - 3000, end + 3000, mark="layers.0.self_attn.q_proj",
    )  # fmt: skip
    begin, end = span(prefill, "_select_", "logits")
    picture(
        "qwen3-end", prefill,
        "The end of the prefill: Task DMA of chiplet 0 feeds the one External HDMA transfer",
        begin - 3000, end + 1000, ("Chiplet 0", "Workload"), arrows="logits",
    )  # fmt: skip
    begin, end = span(decode, "layers.5.", "layers.6.")
    picture(
        "qwen3-decode", decode,
        "A decode step from layer 5 to layer 6: the weights' stream never stops, all else hides",
        begin, end, ("Chiplet 0", "Chiplet 1", "Workload"),
    )  # fmt: skip


def measured(folder: Path, model: str) -> None:
    import dielet

    loaded = dielet.load(model)
    loaded.generate("who are you", max_new_tokens=8, temperature=0)
    with Session(folder) as session:
        loaded.generate("who are you", max_new_tokens=30, temperature=0)
    steps = [read_trace(path) for path in session.files[2:]]
    trace = min(steps, key=lambda step: np.ptp(span(step, "_W0_")))  # the least disturbed
    begin, end = span(trace, "layers.5.", "layers.6.")
    cores = loaded.runtime.threads  # type: ignore[attr-defined]
    name = loaded.spec.name or loaded.spec.model_type
    picture(
        "host-decode", trace,
        f"{name} measured on {cores} cores: layers 5 and 6 of a decode step",
        begin, end,
    )  # fmt: skip


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            modelled(Path(folder))
            if len(sys.argv) > 1:
                measured(Path(folder), sys.argv[1])
        except DieletError as error:
            sys.exit(f"profiling_pictures: {error}")


if __name__ == "__main__":
    main()
