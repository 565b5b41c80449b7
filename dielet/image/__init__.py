"""The model directory: planned, written and read."""

from dielet.image.compile import Progress, compile_checkpoint, plan_checkpoint
from dielet.image.file import Image, open_image
from dielet.image.manifest import Manifest, check_files, read_manifest
from dielet.image.options import CompileOptions
from dielet.image.plan import ModelPlan, plan_model

__all__ = [
    "CompileOptions",
    "Image",
    "Manifest",
    "ModelPlan",
    "Progress",
    "check_files",
    "compile_checkpoint",
    "open_image",
    "plan_checkpoint",
    "plan_model",
    "read_manifest",
]
