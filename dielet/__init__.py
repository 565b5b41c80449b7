"""Compile language models for chiplet accelerators, run them here, and see where the time goes.

    import dielet
    model = dielet.compile("SmolLM2.gguf", "smollm2", weights="int8")
    model = dielet.load("smollm2")
    for piece in model.stream("who are you", max_new_tokens=64): print(piece, end="")
    with dielet.profile(output_dir="profile") as session: model.generate("hello")
    print(dielet.simulate("config.json", device="rebel100").decode_tok_s)
    print(dielet.analyze(session.files[0]).findings[0].title)

Importing this is quick: numpy and the code generator are loaded by the first call that needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dielet import errors, lazy
from dielet.generate.context import PREFIX_CACHE_MB

if TYPE_CHECKING:
    from dielet.analysis import Analysis
    from dielet.generate.answer import Result, Stream
    from dielet.generate.chat import Chat
    from dielet.generate.session import Model
    from dielet.profiler import Session
    from dielet.simulator import Prediction

__version__ = "0.1.0"
__all__ = [
    "Chat", "Model", "Result", "Stream", "analyze", "compile", "errors", "load", "profile",
    "simulate",
]  # fmt: skip

__getattr__ = lazy.names(
    __name__,
    {
        "Chat": "generate.chat",
        "Model": "generate.session",
        "Result": "generate.answer",
        "Stream": "generate.answer",
    },
)


def compile(
    src: str | Path,
    out: str | Path,
    device: str | Path = "host",
    weights: str | None = None,
    max_seq_len: int | None = None,
    *,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Model:
    """Compile the checkpoint `src` (directory, hub id or .gguf) into the model directory `out`.

    `options` are the further fields of `dielet.image.CompileOptions`: chiplets, group,
    prefill_chunk, kv_ladder, kv (bf16 or int8), batch_sizes, layers, random_weights, calibrate (a
    text by which int4 scales are chosen), int8_budget (percent).  None means: decided by
    checkpoint and device.  `progress` is called with bytes written, bytes in all, and
    the name of the next tensor.  Returns the model, loaded.
    """
    from dielet.generate.compiling import compile_usable
    from dielet.generate.session import load
    from dielet.image import CompileOptions, open_source

    given = {"device": str(device), "weights": weights, "max_seq_len": max_seq_len, **options}
    chosen = CompileOptions.of(**{name: v for name, v in given.items() if v is not None})
    return load(compile_usable(open_source(src, chosen), out, chosen, progress))


def load(
    directory: str | Path,
    threads: int | None = None,
    profiler: bool | None = None,
    prefix_cache_mb: int = PREFIX_CACHE_MB,
) -> Model:
    """Load a model directory.  `threads` None: one worker per core.

    `profiler`: the model is always profiled (True), never (False), or when DIELET_PROFILER is set
    or a session asks for it (None).  `prefix_cache_mb`: memory in MB (1e6) for keys and values that
    answers leave behind, so that a prompt that begins like an earlier one is computed from where
    they differ; 0 keeps nothing.
    """
    from dielet.generate import session

    return session.load(directory, threads, profiler, prefix_cache_mb)


def profile(output_dir: str | Path = ".", **options: Any) -> Session:
    """A profiling session: `with dielet.profile("out") as session:`, or its start and stop.

    It records what every loaded model does meanwhile and leaves trace files for Perfetto in
    `output_dir`; see `session.files` and `session.summary()`.  `options` are the further arguments
    of `dielet.profiler.Session`: prefix, compress, executions, memory, disk.
    """
    from dielet.profiler import Session

    return Session(output_dir, **options)


def simulate(
    model: Any,
    device: Any = "rebel100",
    prompt_tokens: int = 128,
    new_tokens: int = 128,
    **options: Any,
) -> Prediction:
    """Predict how fast `model` answers on a described device; nothing runs, no weight is read.

    model: a loaded model, a model directory, a checkpoint, or a bare config.json.  `options` are
    those of `dielet.simulator.simulate`: batch, changes, and the fields of `CompileOptions`.
    """
    from dielet.simulator import simulate as run

    return run(model, device, prompt_tokens, new_tokens, **options)


def analyze(trace: str | Path, **options: Any) -> Analysis:
    """What a trace says about where the time went: see `docs/analysis.md` and its fields.

    `options` are those of `dielet.analysis.analyze`: device, diff, budget, window_ms, what_if.
    """
    from dielet.analysis import analyze as run

    return run(trace, **options)
