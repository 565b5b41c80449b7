"""The model directory: planned, written and read."""

from typing import TYPE_CHECKING

from dielet import lazy

if TYPE_CHECKING:
    from dielet.image.compile import (
        Progress,
        compile_checkpoint,
        compile_model,
        open_source,
        plan_checkpoint,
    )
    from dielet.image.directory import ModelFiles, open_directory
    from dielet.image.manifest import Manifest, read_manifest
    from dielet.image.options import CompileOptions
    from dielet.image.plan import ModelPlan, plan_model

__all__ = [
    "CompileOptions",
    "Manifest",
    "ModelFiles",
    "ModelPlan",
    "Progress",
    "compile_checkpoint",
    "compile_model",
    "open_directory",
    "open_source",
    "plan_checkpoint",
    "plan_model",
    "read_manifest",
]

__getattr__ = lazy.names(
    __name__,
    {
        "CompileOptions": "options",
        "Manifest": "manifest",
        "ModelFiles": "directory",
        "ModelPlan": "plan",
        "Progress": "compile",
        "compile_checkpoint": "compile",
        "compile_model": "compile",
        "open_directory": "directory",
        "open_source": "compile",
        "plan_checkpoint": "compile",
        "plan_model": "plan",
        "read_manifest": "manifest",
    },
)
