"""Programs: command tables with operands in memory, waits and signals."""

from typing import TYPE_CHECKING

from dielet import lazy

if TYPE_CHECKING:
    from dielet.program.lowering import Placement, Shape
    from dielet.program.memory import KvLayout, WeightPlan, plan_weights
    from dielet.program.sync import synchronise
    from dielet.program.types import Command, Operand, Program, Region
    from dielet.program.verify import check_happens_before, verify_commands, verify_program

__all__ = [
    "Command",
    "KvLayout",
    "Operand",
    "Placement",
    "Program",
    "Region",
    "Shape",
    "WeightPlan",
    "check_happens_before",
    "plan_weights",
    "synchronise",
    "verify_commands",
    "verify_program",
]

__getattr__ = lazy.names(
    __name__,
    {
        "Command": "types",
        "KvLayout": "memory",
        "Operand": "types",
        "Placement": "lowering",
        "Program": "types",
        "Region": "types",
        "Shape": "lowering",
        "WeightPlan": "memory",
        "check_happens_before": "verify",
        "plan_weights": "memory",
        "synchronise": "sync",
        "verify_commands": "verify",
        "verify_program": "verify",
    },
)
