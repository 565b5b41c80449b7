"""Programs: command tables with operands in memory, waits and signals."""

from dielet.program.explain import explain
from dielet.program.interpret import interpret
from dielet.program.lower import lower
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
    "explain",
    "interpret",
    "lower",
    "plan_weights",
    "synchronise",
    "verify_commands",
    "verify_program",
]
