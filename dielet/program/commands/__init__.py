"""The command set: one entry per command, the table `ENTRIES`."""

from dielet.program.commands import attention, elementwise, experts, linear, transfer
from dielet.program.commands.entry import ENTRIES, Entry, Run, Values, by_kind

__all__ = [
    "ENTRIES",
    "Entry",
    "Run",
    "Values",
    "attention",
    "by_kind",
    "elementwise",
    "experts",
    "linear",
    "transfer",
]
