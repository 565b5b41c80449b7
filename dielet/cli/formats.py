"""List the families of models, and the formats of their checkpoints, that dielet reads."""

from __future__ import annotations

import argparse

from dielet.cli.console import Console, table

HELP = "list the families and formats of models that are read"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None but the common ones."""


def run(args: argparse.Namespace, console: Console) -> None:
    from dielet.checkpoint.gguf_families import FAMILIES
    from dielet.checkpoint.quantization import METHODS
    from dielet.checkpoint.safetensors import READABLE_DTYPES
    from dielet.checkpoint.spec import SUPPORTED_MODEL_TYPES
    from dielet.formats.ggml import READABLE

    facts = {
        "model_type": SUPPORTED_MODEL_TYPES,
        "safetensors": READABLE_DTYPES,
        "quantised safetensors": METHODS,
        "gguf architecture": tuple(FAMILIES),
        "gguf weights": READABLE,
    }
    console.result({name.replace(" ", "_"): list(found) for name, found in facts.items()})
    console.out(table({name: ", ".join(found) for name, found in facts.items()}))
    console.out("What of these is kept as it is, and how each was checked: docs/models.md")
