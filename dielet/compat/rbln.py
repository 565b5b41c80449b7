"""`optimum.rbln` and `rebel` for a process that `dielet exec` started: imports that lead here.

Nothing is replaced unless `install` is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

from dielet.compat.needs import require

require()

from dielet.compat import rbln_models, rbln_tracing  # noqa: E402
from dielet.compat.rbln_artefact import OPTIMUM  # noqa: E402
from dielet.compat.rbln_errors import NoRuntime, NotHere, NotPossible  # noqa: E402
from dielet.compat.rbln_options import RBLNDecoderOnlyModelForCausalLMConfig  # noqa: E402
from dielet.errors import UsageError  # noqa: E402

# Classes of optimum-rbln whose families dielet does not have.
OTHERS = (
    "Exaone", "GPT2LMHead", "Gemma", "Gemma2", "Gemma4", "GptOss", "MidmLMHead",
    "Mixtral", "OPT", "Phi", "Qwen2Moe", "Qwen3_5",
)  # fmt: skip
INSTEAD = (
    "{name} is for any torch module, and dielet compiles decoder-only language models: use "
    "optimum.rbln's RBLNAutoModelForCausalLM.from_pretrained(..., export=True), or `dielet compile`"
)


def _instead(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotPossible(INSTEAD.format(name=f"rebel.{name}"))

    return refuse


def _optimum_rbln() -> dict[str, Any]:
    configs = {f"{n}Config": c.config_class for n, c in rbln_models.CLASSES.items()}
    return {
        **configs,
        **rbln_models.CLASSES,
        "RBLNAutoModelForCausalLM": rbln_models.RBLNAutoModelForCausalLM,
        "RBLNDecoderOnlyModelForCausalLMConfig": RBLNDecoderOnlyModelForCausalLMConfig,
        "__version__": OPTIMUM,
    }


def _rebel() -> dict[str, Any]:
    names = ("compile_from_torch", "compile_from_tf_function", "Runtime", "RBLNCompiledModel")
    return {**{name: _instead(name) for name in names}, "RBLNRuntimeError": NoRuntime}


def _profiler() -> dict[str, Any]:
    return {name: getattr(rbln_tracing, name) for name in ("profile", "start", "done")}


MODULES: dict[str, Callable[[], dict[str, Any]]] = {
    "optimum": dict,
    "optimum.rbln": _optimum_rbln,
    "rebel": _rebel,
    "rebel.profiler": _profiler,
}


class Finder(MetaPathFinder, Loader):
    """Finds the vendor's modules; `optimum` itself only where the real one is not installed."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._asked = ""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self._names:
            # `from optimum.rbln import NAME` looks for a module when there is no such attribute;
            # who asks for the module alone is told that there is none.
            if name == self._asked:
                raise NotHere(_missing(*name.rsplit(".", 1)))
            return None
        return ModuleSpec(name, self, origin=f"dielet for {name}", is_package=True)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(MODULES[module.__name__]())
        vars(module)["__getattr__"] = partial(self._no_attribute, module.__name__)
        if module.__name__ == "rebel":
            import_module("rebel.profiler")  # `import rebel` alone gives it too

    def _no_attribute(self, module: str, name: str) -> NoReturn:
        self._asked = f"{module}.{name}"
        raise AttributeError(_missing(module, name))


def _missing(module: str, name: str) -> str:
    stem = name.removeprefix("RBLN").removesuffix("Config").removesuffix("ForCausalLM")
    stem = stem.removesuffix("Model")
    headed = f"RBLN{stem}ForCausalLM"
    if headed in rbln_models.CLASSES:
        return f"{name} gives hidden states, and dielet's programs give logits: use {headed}"
    if stem in OTHERS:
        return f"{name}: dielet has no such family; it has {', '.join(rbln_models.CLASSES)}"
    return f"{module} has no {name} here; it has {', '.join(MODULES[module]())}"


def real_ones() -> list[str]:
    """Those of the vendor's packages that are installed, with the place of each."""
    optimum = PathFinder.find_spec("optimum")
    inside = list(optimum.submodule_search_locations or ()) if optimum is not None else []
    specs = PathFinder.find_spec("rebel"), PathFinder.find_spec("optimum.rbln", inside)
    return [f"{spec.name} ({spec.origin or 'a folder'})" for spec in specs if spec is not None]


def install(override: bool = False) -> None:
    """Let imports of the vendor's modules lead here, in this process.

    Raises UsageError when the real ones are installed, unless `override`.
    """
    found = real_ones()
    if found and not override:
        raise UsageError(
            f"{' and '.join(found)} is installed: run the script with python to use the board, or "
            "with dielet exec --override to use dielet instead"
        )
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    names = set(MODULES)
    if PathFinder.find_spec("optimum") is not None:
        names.discard("optimum")
    sys.meta_path.insert(0, Finder(tuple(names)))
