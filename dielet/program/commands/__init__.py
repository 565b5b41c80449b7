"""The command set: one entry per command, the table `ENTRIES`."""

from dielet.program.commands import attention, elementwise, linear, transfer
from dielet.program.commands.entry import ENTRIES, Entry, Run, Values, by_kind

__all__ = [
    "ENTRIES",
    "Entry",
    "Run",
    "Values",
    "attention",
    "by_kind",
    "elementwise",
    "linear",
    "transfer",
]
