"""Hold a program against its rules.  Run on every program that is compiled in the tests."""

from __future__ import annotations

from collections.abc import Iterator

from dielet.errors import InternalError
from dielet.formats.cache import position_bytes
from dielet.program.commands import ENTRIES
from dielet.program.commands.attention import CACHE_DTYPES, kv_format
from dielet.program.commands.entry import ITEM_SIZE
from dielet.program.sync import accesses
from dielet.program.types import READ_ONLY, Command, Program, Region, space_number

MOST_ROWS = 1 << 24


def verify_program(program: Program, sizes: dict[str, int]) -> None:
    """Raise InternalError unless the program is legal.

    `sizes`: bytes that address spaces really have; where it says nothing the program is believed.
    Checked: the program's parts name each other, operands and attributes are as the entry says,
    bytes in bounds, read-only memory not written, what is read was written before, waits
    satisfiable and signals waited for.
    """
    limits = {**program.sizes, **sizes}
    _verify_parts(program, limits)
    written = [program.io["hidden_in"]]
    for number, command in enumerate(program.commands):
        where = f"{program.name} command {number} ({command.kind} {command.layer})"
        _verify_operands(command, limits, where)
        _verify_widths(program, command, where)
        _verify_reads(command, written, where)
        written += [region for region, writes in accesses(command) if writes]
    _verify_semaphores(program)


def _verify_parts(program: Program, limits: dict[str, int]) -> None:
    """What the tables of a program say of each other."""
    commands, queues = range(len(program.commands)), range(len(program.queues))
    outputs = {"head": "logits"}.get(program.phase, "hidden_out")
    checks = {
        "no commands": bool(commands),
        f"no {outputs}": {"hidden_in", outputs} <= set(program.io),
        "groups for other commands": len(program.groups) == len(commands)
        and list(program.groups) == sorted(program.groups),
        "a queue that is not there": all(
            command.queue in queues and all(wait.queue in queues for wait in command.waits)
            for command in program.commands
        ),
        "a dependency on what comes later": all(
            all(0 <= dep < number for dep in command.deps)
            for number, command in enumerate(program.commands)
        ),
        "inputs or outputs out of bounds": all(
            region.offset >= 0 and region.width > 0 and region.end <= limits.get(region.space, 0)
            for region in program.io.values()
        ),
    }
    for complaint, holds in checks.items():
        if not holds:
            raise InternalError(f"{program.name} has {complaint}")


def _verify_widths(program: Program, command: Command, where: str) -> None:
    """Hold operands against attributes, which kernels are generated from."""
    widths = ENTRIES[command.kind].widths(command)
    for operand in command.operands:
        region = operand.region
        wanted = widths.get(operand.role, region.width)
        if region.width != wanted or not 1 <= region.rows <= MOST_ROWS:
            raise InternalError(
                f"{where}: {operand.role} is {region.rows} x {region.width} bytes, "
                f"expected rows of {wanted}"
            )
        if operand.role in ("k_cache", "v_cache") and "D" in command.attrs:
            kv = kv_format(command)
            wanted = program.capacity * position_bytes(kv, int(command.attrs["D"]))
            if region.width != wanted or region.stride < wanted:
                raise InternalError(f"{where}: {operand.role} holds other than {wanted} bytes")
            if CACHE_DTYPES.get(kv) != operand.dtype:
                raise InternalError(f"{where}: {operand.role} is {operand.dtype}, not {kv}")
        if operand.role in ("cos", "sin") and region.rows < program.capacity:
            raise InternalError(f"{where}: {operand.role} has {region.rows} positions")
    rows = {o.role: o.region.rows for o in command.operands}
    tall = {rows[role] for role in ("x", "y", "q", "k", "v", "gate", "up") if role in rows}
    if len(tall) > 1 or command.attrs.get("row0", 0) not in range(program.tokens):
        raise InternalError(f"{where}: its values have {sorted(tall)} rows")
    if "T" in command.attrs and (command.attrs["T"] == 1) != (tall == {1}):
        raise InternalError(f"{where}: a kernel for {command.attrs['T']} rows has {sorted(tall)}")


def _verify_operands(command: Command, limits: dict[str, int], where: str) -> None:
    entry = ENTRIES.get(command.kind)
    if entry is None:
        raise InternalError(f"{where}: no such command")
    roles = [operand.role for operand in command.operands]
    order = entry.operand_order()
    if roles != [role for role in order if role in roles]:
        raise InternalError(f"{where}: operands {roles} are not in the order {order}")
    needed = {r for r in f"{entry.reads} {entry.updates} {entry.writes}".split() if r[-1] != "?"}
    if not needed <= set(roles):
        raise InternalError(f"{where}: lacks operands {sorted(needed - set(roles))}")
    if missing := [name for name in entry.static if name not in command.attrs]:
        raise InternalError(f"{where}: lacks attributes {missing}")
    written = set((entry.writes + " " + entry.updates).replace("?", "").split())
    for operand in command.operands:
        region = operand.region
        if not _is_space(region.space) or operand.dtype not in ITEM_SIZE:
            raise InternalError(f"{where}: operand {operand} names no known space or dtype")
        if region.space in READ_ONLY and operand.role in written:
            raise InternalError(f"{where}: writes {operand.role} in read-only {region.space}")
        outside = region.offset < 0 or region.width < 1 or region.rows < 1 or region.stride < 0
        if outside or region.end > limits.get(region.space, 0):
            raise InternalError(
                f"{where}: {operand.role} ends at {region.end} of {region.space}, "
                f"which has {limits.get(region.space, 0)} bytes"
            )


def _is_space(name: str) -> bool:
    try:
        space_number(name)
    except ValueError:
        return False
    return True


def _verify_reads(command: Command, written: list[Region], where: str) -> None:
    for region, writes in accesses(command):
        # The cache was filled by earlier programs.
        if not writes and region.space != "kv" and not any(region.overlaps(w) for w in written):
            raise InternalError(f"{where}: reads {region}, which nothing wrote")


def _verify_semaphores(program: Program) -> None:
    raised = [0] * len(program.queues)
    for command in program.commands:
        raised[command.queue] += command.signals
    waited = [0] * len(program.queues)
    for number, command in enumerate(program.commands):
        for wait in command.waits:
            if not 1 <= wait.count <= raised[wait.queue]:
                raise InternalError(
                    f"{program.name} command {number} waits for {wait.count} of semaphore "
                    f"{wait.queue}, which is raised {raised[wait.queue]} times"
                )
            waited[wait.queue] = max(waited[wait.queue], wait.count)
    if waited != raised:
        raise InternalError(f"{program.name}: semaphores raised {raised}, waited for {waited}")


def check_happens_before(program: Program) -> int:
    """Raise InternalError if two unordered commands share bytes that one of them writes.

    Order comes from the queues, the waits and the signals alone, by vector clocks; `deps` are not
    looked at.  Returns the number of pairs of commands compared.
    """
    clocks = vector_clocks(program)
    compared = 0
    seen: list[tuple[int, list[tuple[Region, bool]]]] = []
    for number, command in enumerate(program.commands):
        mine = accesses(command)
        for other, theirs in seen:
            if _ordered(program, clocks, other, number):
                continue
            compared += 1
            if clash := next(_clashes(mine, theirs), None):
                raise InternalError(
                    f"{program.name}: commands {other} ({program.commands[other].layer}) and "
                    f"{number} ({command.layer}) are not ordered and share {clash}"
                )
        seen.append((number, mine))
    return compared


def _clashes(
    mine: list[tuple[Region, bool]], theirs: list[tuple[Region, bool]]
) -> Iterator[Region]:
    for a, writes in mine:
        for b, wrote in theirs:
            if (writes or wrote) and a.overlaps(b):
                yield a


def _ordered(program: Program, clocks: list[list[int]], first: int, second: int) -> bool:
    queue = program.commands[first].queue
    return clocks[second][queue] >= clocks[first][queue]


def vector_clocks(program: Program) -> list[list[int]]:
    """Per command, how many commands of each queue have surely completed once it has."""
    size = len(program.queues)
    signalled: list[list[list[int]]] = [[] for _ in range(size)]  # clock of each signal
    latest = [[0] * size for _ in range(size)]
    clocks: list[list[int]] = []
    for number, command in enumerate(program.commands):
        clock = list(latest[command.queue])
        for wait in command.waits:
            if wait.count > len(signalled[wait.queue]):
                raise InternalError(
                    f"{program.name} command {number} waits for a command that stands after it"
                )
            source = signalled[wait.queue][wait.count - 1]
            clock = [max(a, b) for a, b in zip(clock, source, strict=True)]
        clock[command.queue] += 1
        clocks.append(clock)
        latest[command.queue] = clock
        if command.signals:
            signalled[command.queue].append(clock)
    return clocks
