"""Hold a program against its rules.  Run on every program that is compiled in the tests."""

from __future__ import annotations

from collections.abc import Iterator

from dielet.errors import InternalError
from dielet.formats.cache import position_bytes
from dielet.program.buffers import ROW_TILE
from dielet.program.commands import ENTRIES
from dielet.program.commands.attention import CACHES, kv_format
from dielet.program.commands.attributes import ATTRIBUTES
from dielet.program.commands.entry import ITEM_SIZE, Entry
from dielet.program.commands.transfer import DeviceSync, Transfer
from dielet.program.sync import accesses
from dielet.program.types import (
    MAX_CHIPLETS,
    READ_ONLY,
    Command,
    Operand,
    Program,
    Region,
    space_number,
)

WORD = 4
MOST_TOKENS = 1 << 12
SELECTED = 16  # bytes of what `select` says of a row
SINGLE = ("weight", "norm", "bias")  # operands of one row, as packed weights are
TABLES = ("cos", "sin")  # .. and of a row for each position
LIKE = {"x_sum": "x_scale", "y_sum": "y_scale", "v_cache": "k_cache"}  # that have one stride


def verify_program(program: Program, sizes: dict[str, int]) -> None:
    """Raise InternalError unless the program is legal.

    `sizes`: bytes that address spaces really have; where it says nothing the program is believed.
    Checked: the program's parts name each other, attributes and operands are those of the command's
    entry and go with each other, bytes in bounds, read-only memory not written, what is read was
    written before, waits satisfiable and signals waited for.
    """
    verify_commands(program, sizes)
    written = [program.io["hidden_in"]]
    for number, command in enumerate(program.commands):
        _verify_reads(command, written, _where(program, number))
        written += [region for region, writes in accesses(command) if writes]
    _verify_semaphores(program)


def verify_commands(program: Program, sizes: dict[str, int]) -> None:
    """The part of `verify_program` that looks at every command by itself: kernels may be generated
    for those that pass, and read and write no byte outside of their operands."""
    limits = {**program.sizes, **sizes}
    _verify_parts(program, limits)
    for number, command in enumerate(program.commands):
        where = _where(program, number)
        entry = ENTRIES.get(command.kind)
        if entry is None:
            raise InternalError(f"{where}: no such command")
        _verify_attributes(entry, command, where)
        _verify_roles(entry, command, where)
        for operand in command.operands:
            _verify_operand(entry, command, operand, limits, where)
        if complaint := entry.complaint(command):
            raise InternalError(f"{where}: {complaint}")
        _verify_shapes(entry, program, command, where)


def _where(program: Program, number: int) -> str:
    command = program.commands[number]
    return f"{program.name} command {number} ({command.kind} {command.layer})"


def _verify_parts(program: Program, limits: dict[str, int]) -> None:
    """What the tables of a program say of each other."""
    commands, queues = range(len(program.commands)), range(len(program.queues))
    head = program.phase == "head"
    outputs = "logits" if head else "hidden_out"
    selects = [c for c in program.commands if c.kind == "select"]
    chosen = {f"select.{program.queues[c.queue].chiplet}" for c in selects if c.queue in queues}
    checks = {
        "no commands": bool(commands),
        f"no {outputs}": {"hidden_in", outputs} <= set(program.io),
        "tokens or a capacity that cannot be": 1 <= program.tokens <= MOST_TOKENS
        and (program.capacity > 0) != head,
        "chiplets that cannot be": 1 <= program.devices <= program.chiplets <= MAX_CHIPLETS
        and program.chiplets % program.devices == 0
        and all(0 <= queue.chiplet < program.chiplets for queue in program.queues),
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
        "selections that do not go with its outputs": len(chosen) == len(selects)
        and bool(selects) == head
        and chosen == {name for name in program.io if name.startswith("select.")},
        "inputs or outputs out of bounds": limits.get("io", 0) % WORD == 0
        and all(_is_outside(program, name, limits) for name in program.io),
    }
    for complaint, holds in checks.items():
        if not holds:
            raise InternalError(f"{program.name} has {complaint}")


def _is_outside(program: Program, name: str, limits: dict[str, int]) -> bool:
    """Whether one of `io` is a matrix of 32-bit numbers with a row for every token."""
    region = program.io[name]
    given, chosen = name == "hidden_in", name.startswith("select.")
    return (
        region.space == "io"
        and region.offset >= 0
        and region.offset % WORD == region.stride % WORD == region.width % WORD == 0
        and region.rows == program.tokens
        and (region.width == SELECTED if chosen else region.width > 0)
        and (region.stride == region.width if given else region.stride >= region.width)
        and region.end <= limits.get("io", 0)
    )


def _verify_attributes(entry: Entry, command: Command, where: str) -> None:
    needed, attrs = set(entry.attributes(command)), command.attrs
    if missing := sorted(needed - set(attrs)):
        raise InternalError(f"{where}: lacks attributes {missing}")
    if strange := sorted(set(attrs) - needed - set(entry.options)):
        raise InternalError(f"{where}: has attributes {strange}, which it does not know")
    for name, value in attrs.items():
        if not ATTRIBUTES[name].holds(value):
            raise InternalError(f"{where}: {name} is {value!r}, it must be {ATTRIBUTES[name]}")


def _verify_roles(entry: Entry, command: Command, where: str) -> None:
    roles, wanted = [operand.role for operand in command.operands], entry.roles(command)
    if roles != [role for role in entry.operand_order() if role in wanted]:
        raise InternalError(f"{where}: its operands are {roles}, its attributes ask for {wanted}")


def _verify_operand(
    entry: Entry, command: Command, operand: Operand, limits: dict[str, int], where: str
) -> None:
    """One operand by itself: where it is, and what it is of."""
    region, role = operand.region, operand.role
    where = f"{where}: {role}"
    size = ITEM_SIZE.get(operand.dtype, 0)
    if not _is_space(region.space) or not size:
        raise InternalError(f"{where} {operand} names no known space or dtype")
    dtype = entry.dtypes(command).get(role, "f32")
    if operand.dtype != dtype:
        raise InternalError(f"{where} is {operand.dtype}, its attributes ask for {dtype}")
    written = entry.written_roles()
    if region.space in READ_ONLY and role in written:
        raise InternalError(f"{where} is written in read-only {region.space}")
    if region.space == "kv" and role in written and role not in CACHES:
        raise InternalError(f"{where} is written into the cache")
    outside = region.offset < 0 or region.width < 1 or region.rows < 1 or region.stride < 0
    if outside or region.end > limits.get(region.space, 0):
        raise InternalError(
            f"{where} ends at {region.end} of {region.space}, "
            f"which has {limits.get(region.space, 0)} bytes"
        )
    if region.offset % size or region.stride % size or region.width % size:
        raise InternalError(f"{where} does not lie on whole numbers of {size} bytes")
    gap = region.stride - region.width if region.rows > 1 else 0
    if gap < 0 or (gap and role in entry.packed.split()):
        raise InternalError(f"{where} has rows of {region.width} bytes {region.stride} apart")


def _verify_shapes(entry: Entry, program: Program, command: Command, where: str) -> None:
    """Hold operands against attributes, the program's shape, and each other."""
    regions = {operand.role: operand.region for operand in command.operands}
    single = {o.role for o in command.operands if o.dtype == "packed"} | set(SINGLE)
    for role, wanted in entry.widths(command).items():
        if role in regions and regions[role].width != wanted:
            raise InternalError(f"{where}: {role} has rows of {regions[role].width}, not {wanted}")
    for role, other in LIKE.items():
        if role in regions and other in regions:
            a, b = regions[role], regions[other]
            if (a.rows, a.width, a.stride if a.rows > 1 else 0) != (
                b.rows, b.width, b.stride if b.rows > 1 else 0,
            ):  # fmt: skip
                raise InternalError(f"{where}: {role} and {other} do not lie alike")
    for role in CACHES:
        if role in regions:
            width = program.capacity * position_bytes(kv_format(command), int(command.attrs["D"]))
            if regions[role].width != width or regions[role].stride < width:
                raise InternalError(f"{where}: {role} holds other than {width} bytes a head")
    for role, region in regions.items():
        if role in single and region.rows != 1:
            raise InternalError(f"{where}: {role} has {region.rows} rows")
        if role in TABLES and region.rows < program.capacity:
            raise InternalError(f"{where}: {role} has {region.rows} positions")
    if not isinstance(entry, Transfer | DeviceSync):
        tall = {role: r for role, r in regions.items() if role not in (*single, *TABLES, *CACHES)}
        _verify_rows(program, command, tall, where)


def _verify_rows(program: Program, command: Command, values: dict[str, Region], where: str) -> None:
    """Values have a row for every token, or for those from `row0` on."""
    attrs, tokens = command.attrs, program.tokens
    tall = {region.rows for region in values.values()}
    rows = next(iter(tall))
    first = int(attrs.get("row0", 0))
    if len(tall) > 1 or (first + rows > tokens if "row0" in attrs else rows != tokens):
        raise InternalError(f"{where}: its values have {sorted(tall)} rows of {tokens} tokens")
    wanted = {
        "T": 1 if tokens == 1 else max(tokens, ROW_TILE),
        "batch": program.phase == "decode" and tokens > 1,
    }
    for name, value in wanted.items():
        if attrs.get(name, value) != value:
            raise InternalError(f"{where}: {name} is {attrs[name]}, for {tokens} tokens {value}")
    if "first_column" in attrs and "logits" in program.io:
        columns = int(attrs["first_column"]) * WORD + values["x"].width
        if columns > program.io["logits"].width:
            raise InternalError(f"{where}: its columns are beyond the logits")


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
