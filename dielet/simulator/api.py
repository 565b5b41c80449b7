"""`dielet.simulate`: a model, compiled or not, on a device, with figures changed at will."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dielet.checkpoint.spec import ModelSpec
from dielet.devices import Device
from dielet.image import CompileOptions
from dielet.simulator.calibrated import named_device
from dielet.simulator.model import (
    Lowered,
    Programs,
    Source,
    configured,
    open_source,
    option_value,
    spec_source,
)
from dielet.simulator.predict import Prediction, predict

if TYPE_CHECKING:
    from dielet.generate.session import Model

OWN = ("prompt_tokens", "new_tokens", "batch", "threads")


def simulate(
    model: Model | ModelSpec | Source | str | Path,
    device: str | Path | Device = "rebel100",
    prompt_tokens: int = 128,
    new_tokens: int = 128,
    *,
    batch: int = 1,
    threads: int | None = None,
    changes: Mapping[str, str | int] | None = None,
    lowered: Lowered | None = None,
    **options: Any,
) -> Prediction:
    """Predict how fast `model` answers on `device`; nothing is executed and no weight is read.

    model: a loaded model, a model directory, a checkpoint, a config.json, or a spec.  batch:
    sequences decoded together.  threads: workers of a device whose chiplets share one memory.
    changes: figures of the device by their path ("memory.dram.bandwidth": "0.6 TB/s"), or compile
    options by name, as `dielet simulate --set` takes them.  lowered: a dict to keep programs in
    from call to call on one `Source`.  options: further compile options.
    """
    texts = {name: str(value) for name, value in (changes or {}).items()}
    given = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "batch": batch}
    given |= {name: option_value(name, texts.pop(name)) for name in OWN if name in texts}
    threads = given.pop("threads", threads)
    if given["batch"] > 1:
        options.setdefault("batch_sizes", (given["batch"],))
    source = _source(model, CompileOptions.of(**options))
    chosen = device if isinstance(device, Device) else named_device(str(device))
    source, chosen = configured(source, chosen, texts)
    return predict(Programs(source, chosen, lowered), source.name, workers=threads, **given)


def _source(model: Any, options: CompileOptions) -> Source:
    if isinstance(model, Source):
        return model
    if isinstance(model, ModelSpec):
        return spec_source(model, options)
    if isinstance(model, str | Path):
        return open_source(model, options)
    return open_source(model.directory, options)  # a loaded model
