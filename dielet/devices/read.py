"""Read a device file: strict, every error with its line, every figure with its source."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from dielet.devices.device import (
    COMMANDS,
    FORMATS,
    MAX_CHIPLETS,
    Device,
    Engine,
    Figure,
    Link,
    Memory,
    Signal,
    Tile,
)
from dielet.devices.text import Places
from dielet.devices.units import BANDWIDTH, RATE, SIZE, TIME, Unit, parse, show
from dielet.errors import DamagedFile, MissingFile
from dielet.files import require_file, toml_values

LONGEST, SLOWEST = 10**12, 1000  # one second, and 1 kB/s: what the simulator can still tell apart
NEEDED = (
    "linear", "attention", "rmsnorm", "rotary", "kv_append", "silu_mul", "quantize", "convert",
    "select",
)  # fmt: skip
NEEDED_BETWEEN = ("reduce", "copy", "weight_copy", "host_copy")  # of chiplets with own memories
SOURCES = ("source:", "assumed", "measured")
SPACES = {
    "weights": "dram", "head": "dram", "embedding": "dram", "cos": "dram", "sin": "dram",
    "kv": "dram", "staging": "dram", "shared": "shared", "scratchpad": "scratchpad", "io": "host",
}  # fmt: skip


def built_in() -> tuple[str, ...]:
    """Names of the devices that come with dielet."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(f.name[:-5] for f in files if f.name.endswith(".toml")))


def load_device(name_or_path: str) -> Device:
    """The built-in device of that name, or the one described by that TOML file."""
    return read_device(device_text(name_or_path), name_or_path)


def device_text(name_or_path: str) -> str:
    """The TOML text of a built-in device or of a file.  MissingFile when there is neither."""
    if name_or_path in built_in():
        return (resources.files(__package__) / f"{name_or_path}.toml").read_text("utf-8")
    path = Path(os.path.expanduser(name_or_path))
    try:
        found = path.is_file()
    except OSError:
        found = False  # no name that a file could have
    if not found:
        raise MissingFile(
            f"device '{name_or_path}' is neither built in ({', '.join(built_in())}) nor a file; "
            "name one of those or give the path of a .toml"
        )
    return _text(path)


def read_device_file(path: Path) -> Device:
    """Like `read_device`, of a file.  MissingFile, DamagedFile where it cannot be read at all."""
    return read_device(_text(path), str(path))


def _text(path: Path) -> str:
    require_file(path, "a device file")
    try:
        return path.read_text("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError:
        raise DamagedFile(f"device file {path} is not text in UTF-8") from None
    except OSError as error:
        raise MissingFile(f"device file {path} cannot be read: {error.strerror}") from None


def read_device(text: str, where: str) -> Device:
    """Decode and validate a device file.  DamagedFile says what is wrong, and in which line."""
    try:
        values = toml_values(text)
    except ValueError as error:
        raise DamagedFile(f"device file {where}: {error}") from None
    return read_device_values(values, text, where, {})


def read_device_values(
    values: dict[str, Any], text: str, where: str, sources: dict[str, str]
) -> Device:
    """Validate the values of `text`; `sources` of those that were changed, by their path."""
    return _Reader(text, where, sources).device(values)


class _Reader:
    """Takes a decoded file apart; `figures` collects its numbers on the way."""

    def __init__(self, text: str, where: str, sources: dict[str, str]) -> None:
        self.text, self.where, self.sources = text, where, sources
        self.places = Places(text)
        self.figures: list[Figure] = []

    def device(self, values: dict[str, Any]) -> Device:
        top = _Table(self, "", values)
        name = top.text("name")
        about = top.text("about", "")
        devices, chiplets = top.whole("devices", 1), top.whole("chiplets")
        if devices * chiplets > MAX_CHIPLETS:
            self.fail("chiplets", f"{devices} x {chiplets} chiplets, at most {MAX_CHIPLETS}")
        partition = top.one_of("partition", ("column", "column_row"))
        shared_memory = top.one_of("shared_memory", ("device", "chiplet"))
        padding = top.one_of("padding", ("skipped", "computed"), "computed")
        launch = top.quantity("launch", TIME, 0)
        engines = {n: self._engine(n, t) for n, t in top.tables("engine")}
        memories = {n: self._memory(n, t) for n, t in top.tables("memory")}
        links = {n: self._link(n, t) for n, t in top.tables("link")}
        signal = self._signal(top.table("signal"))
        spaces = {**SPACES, **self._spaces(top.table("spaces"))}
        top.finish()
        self._check_commands(engines)
        device = Device(
            name, chiplets, partition, shared_memory, engines, devices, about, padding, memories,
            links, signal, launch, spaces, tuple(self.figures), self.text,
        )  # fmt: skip
        self._check_parts(device)
        return device

    def _engine(self, name: str, t: _Table) -> Engine:
        commands = t.texts("commands")
        if not commands:
            self.fail(t.path, "this engine has no commands: list those that it takes")
        for command in commands:
            if command not in COMMANDS:
                near = _near(command, COMMANDS)
                self.fail(f"{t.path}.commands", f"no command is called '{command}'{near}")
        tile = t.table("tile")
        sizes = Tile(tile.whole("rows", 1), tile.whole("columns", 1), tile.whole("depth", 1))
        tile.finish()
        rates = t.table("rates").quantities(RATE)
        for rate in rates:
            kind, _, rest = rate.partition(" ")
            if kind not in COMMANDS or not re.fullmatch(r"\S+ [1-9]\d*", rest):
                self.fail(f"{t.path}.rates.{rate}", "is none of 'kind variant rows'")
        engine = Engine(
            name=name,
            title=t.text("title", name),
            commands=commands,
            count=t.whole("count", 1),
            peak=t.table("peak").quantities(RATE, FORMATS),
            tile=sizes,
            rates=rates,
            setup=t.quantity("setup", TIME, 0),
            port=t.table("port").quantities(BANDWIDTH),
            slots=t.whole("slots", 2),
            alongside=t.whole("alongside", 100),
        )
        t.finish()
        if engine.alongside > 100:
            self.fail(f"{t.path}.alongside", f"is {engine.alongside}; it is percent, at most 100")
        return engine

    def _memory(self, name: str, t: _Table) -> Memory:
        size = t.quantity("size", SIZE, 0)
        memory = Memory(
            name, size, t.quantity("bandwidth", BANDWIDTH), t.quantity("latency", TIME, 0)
        )
        t.finish()
        return memory

    def _link(self, name: str, t: _Table) -> Link:
        bandwidth, latency = t.quantity("bandwidth", BANDWIDTH), t.quantity("latency", TIME, 0)
        topology: Any = t.one_of("topology", ("mesh", "all", "port"), "all")
        t.finish()
        return Link(name, bandwidth, latency, topology)

    def _signal(self, t: _Table) -> Signal:
        times = [t.quantity(name, TIME, 0) for name in ("engine", "chiplet", "device")]
        t.finish()
        return Signal(*times)

    def _spaces(self, t: _Table) -> dict[str, str]:
        found = {name: t.text(name) for name in t.values}
        for name in found:
            if name not in SPACES:
                self.fail(f"{t.path}.{name}", f"no address space is '{name}'{_near(name, SPACES)}")
        return found

    def _check_commands(self, engines: dict[str, Engine]) -> None:
        taken: dict[str, str] = {}
        if not engines:
            self.fail("", "there is no [engine.NAME]")
        for engine in engines.values():
            for command in engine.commands:
                if command in taken:
                    self.fail(
                        f"engine.{engine.name}.commands",
                        f"'{command}' is taken by engine {taken[command]} too",
                    )
                taken[command] = engine.name

    def _check_parts(self, device: Device) -> None:
        for engine in device.engine.values():
            for memory in engine.port:
                if memory not in device.memory:
                    self.fail(f"engine.{engine.name}.port", f"there is no [memory.{memory}]")
        for space, memory in device.spaces.items():
            if memory != SPACES[space] and memory not in device.memory:
                self.fail(f"spaces.{space}", f"there is no [memory.{memory}]")
        scratchpad = device.memory.get("scratchpad")
        if device.local_memory and scratchpad and not scratchpad.size:
            self.fail("memory.scratchpad.size", "is missing: weights are cut to it")
        if missing := device.missing_parts():
            self.fail("shared_memory", f"'{device.shared_memory}' needs [{'], ['.join(missing)}]")
        wanted = NEEDED + NEEDED_BETWEEN * device.local_memory
        taken = {command for engine in device.engine.values() for command in engine.commands}
        if lacking := [command for command in wanted if command not in taken]:
            first = next(iter(device.engine))
            self.fail(f"engine.{first}.commands", f"no engine takes {', '.join(lacking)}")

    def figure(self, path: str, value: int, unit: Unit | None) -> None:
        """Note a number, which must say where it comes from."""
        place = self.places.find(path)
        comment = self.sources.get(path) or (place.comment if place else "")
        if not comment.startswith(SOURCES):
            self.fail(path, "a figure needs its source beside it: `# source: ...` or `# assumed`")
        self.figures.append(Figure(path, value, unit, place.line if place else 0, comment))

    def fail(self, path: str, problem: str) -> NoReturn:
        place = self.places.find(path)
        line = f", line {place.line}" if place else ""
        what = f"{path}: " if path else ""
        raise DamagedFile(f"device file {self.where}{line}: {what}{problem}")


_NEEDED: Any = object()


class _Table:
    """One table of the file; `finish` refuses the keys that nobody asked for."""

    def __init__(self, reader: _Reader, path: str, values: dict[str, Any]) -> None:
        self.reader, self.path, self.values = reader, path, values
        self._asked: set[str] = set()

    def text(self, name: str, default: str = _NEEDED) -> str:
        value: str = self._get(name, str, "text", default)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._get(name, list, "a list of names", [])
        if not all(isinstance(v, str) for v in values):
            self.fail(name, "must be a list of names")
        return tuple(values)

    def one_of(self, name: str, allowed: tuple[str, ...], default: str = _NEEDED) -> str:
        value = self.text(name, default)
        if value not in allowed:
            self.fail(name, f"is '{value}'; use one of {', '.join(allowed)}")
        return value

    def whole(self, name: str, default: int = _NEEDED) -> int:
        value: int = self._get(name, int, "a whole number", default)
        if isinstance(value, bool) or not 1 <= value < 1 << 32:
            self.fail(name, f"is {value}; it must be a whole number of at least 1")
        if name in self.values:
            self.reader.figure(self._path(name), value, None)
        return value

    def quantity(self, name: str, unit: Unit, default: int = _NEEDED) -> int:
        if name not in self.values and default is not _NEEDED:
            self._asked.add(name)
            return default
        return self._quantity(name, unit, zero=unit is TIME)

    def quantities(self, unit: Unit, allowed: Iterable[str] | None = None) -> dict[str, int]:
        """Every key of this table as a quantity."""
        for name in self.values:
            if allowed is not None and name not in allowed:
                self.fail(name, f"is not known{_near(name, allowed)}")
        return {name: self._quantity(name, unit, zero=False) for name in self.values}

    def table(self, name: str) -> _Table:
        return _Table(self.reader, self._path(name), self._get(name, dict, "a table", {}))

    def tables(self, name: str) -> list[tuple[str, _Table]]:
        inner = self.table(name)
        return [(key, inner.table(key)) for key in inner.values]

    def finish(self) -> None:
        for name in self.values:
            if name not in self._asked:
                self.fail(name, f"is an unknown key{_near(name, self._asked)}")

    def fail(self, name: str, problem: str) -> NoReturn:
        self.reader.fail(self._path(name), problem)

    def _quantity(self, name: str, unit: Unit, zero: bool) -> int:
        text = self._get(name, str, f"text such as {unit.example!r}", _NEEDED)
        try:
            value = parse(text, unit)
        except ValueError as error:
            self.fail(name, str(error))
        if value < 0 or (not value and not zero):
            self.fail(name, f"is {text!r}; it must be above 0")
        if unit is TIME and value > LONGEST:
            self.fail(
                name, f"is {text!r}; no time in a device is longer than {show(LONGEST, TIME)}"
            )
        if unit is BANDWIDTH and value < SLOWEST:
            self.fail(name, f"is {text!r}; it must be at least {show(SLOWEST, BANDWIDTH)}")
        self.reader.figure(self._path(name), value, unit)
        return value

    def _get(self, name: str, kind: type, expected: str, default: Any) -> Any:
        self._asked.add(name)
        if name not in self.values:
            if default is _NEEDED:
                self.fail(name, "is missing")
            return default
        value = self.values[name]
        if not isinstance(value, kind):
            self.fail(name, f"is {value!r}; {expected} is expected")
        return value

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _near(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}"
