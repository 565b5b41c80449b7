"""The model directory: planned, written and read."""

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
