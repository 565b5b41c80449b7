"""LLVM through llvmlite: module text to object code, object code to callable addresses.

Imported only where something has to be compiled or linked: LLVM in memory is 60 MB.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import llvmlite.binding as llvm

from dielet.codegen.targets.base import Target
from dielet.errors import InternalError

_ready = threading.Lock()
_state = {"initialised": False, "libraries": 0}


def _initialise() -> None:
    with _ready:
        if not _state["initialised"]:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            _state["initialised"] = True


def _machine(target: Target) -> llvm.TargetMachine:
    _initialise()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )


def _optimised(text: str, machine: llvm.TargetMachine, context: llvm.ContextRef) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text, context)
        module.verify()
    except RuntimeError as problem:
        raise InternalError(f"generated LLVM IR is not valid: {problem}") from problem
    # Tiles and unrolling are decided by the kernels; LLVM only cleans up and allocates registers.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def emit_object(text: str, target: Target) -> bytes:
    """Relocatable object code of a module, for any target."""
    machine = _machine(target)
    return machine.emit_object(_optimised(text, machine, llvm.create_context()))


def emit_assembly(text: str, target: Target) -> str:
    """The same as text, with a comment at each spill and reload: for people, and for the tests."""
    machine = _machine(target)
    machine.set_asm_verbosity(True)
    return machine.emit_assembly(_optimised(text, machine, llvm.create_context()))


class Linked:
    """Object code linked into memory by LLVM; addresses stay valid for as long as this lives."""

    def __init__(self, objects: Sequence[bytes], symbols: Sequence[str], target: Target) -> None:
        self._jit = llvm.create_lljit_compiler(_machine(target))
        builder = llvm.JITLibraryBuilder()
        for code in objects:
            builder.add_object_img(code)
        for symbol in symbols:
            builder.export_symbol(symbol)
        with _ready:
            _state["libraries"] += 1
            name = f"dielet{_state['libraries']}"
        self._tracker = builder.link(self._jit, name)
        self.addresses: dict[str, int] = {s: self._tracker[s] for s in symbols}
