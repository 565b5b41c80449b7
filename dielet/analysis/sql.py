"""SQL over the tables, with the engine that comes with Python.

SQLite is enough for tables of this kind and needs no package; a trace of a million commands is
loaded in a few seconds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from dielet.analysis.export import result_parts, rows_of
from dielet.analysis.frames import COMMANDS, RESULTS, command_frames, result_columns
from dielet.analysis.schema import Analysis
from dielet.analysis.steps import Steps
from dielet.analysis.table import Table
from dielet.errors import DieletError
from dielet.files import CannotWrite

ROWS = 10_000
"""Rows of an answer, at most: it is for reading; --csv and --parquet write all that there is."""
_LONGEST = 1 << 20  # bytes of one value
_LOOKS = 10_000  # instructions of SQLite between two looks whether to stop
_ALLOWED = (
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
)


class BadQuestion(DieletError, ValueError):
    """What was asked is no SELECT that the tables can answer."""


@dataclass(frozen=True)
class Answer:
    """more: there are rows beyond the first ROWS, which are left out."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    more: bool


def query(table: Table, steps: Steps, found: Analysis, text: str) -> Answer:
    """The answer to one SELECT over `commands` and the parts of the analysis.

    Raises BadQuestion with SQLite's words, and the tables or columns that there are.
    """
    # Without a name it is a temporary file, which SQLite keeps in memory while it is small.
    connection = sqlite3.connect("", check_same_thread=False)
    try:
        try:
            _load(connection, table, steps, found, text)
        except sqlite3.OperationalError as error:
            raise CannotWrite(
                f"the temporary file of --sql cannot be written: {error}; free space in the "
                "system's folder for those"
            ) from None
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        connection.set_authorizer(_allow)
        try:
            return _answer(connection, text)
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            connection.set_authorizer(None)
            raise BadQuestion(f"--sql: {error}; {_advice(connection, text, str(error))}") from None
    finally:
        connection.close()


def _allow(action: int, *_: object) -> int:
    """Questions only: SQLite would also write files, even with a database that is read only."""
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def _answer(connection: sqlite3.Connection, text: str) -> Answer:
    """Asks in a thread: a question can take for ever, and signals only reach Python's own code."""
    stop = Event()
    connection.set_progress_handler(stop.is_set, _LOOKS)
    with ThreadPoolExecutor(1) as asker:
        try:
            return asker.submit(_ask, connection, text).result()
        except BaseException:
            stop.set()
            raise


def _ask(connection: sqlite3.Connection, text: str) -> Answer:
    cursor = connection.execute(text)
    if cursor.description is None:
        raise sqlite3.ProgrammingError("not a question")
    rows = cursor.fetchmany(ROWS + 1)
    return Answer(tuple(column[0] for column in cursor.description), rows[:ROWS], len(rows) > ROWS)


def _load(
    connection: sqlite3.Connection, table: Table, steps: Steps, found: Analysis, text: str
) -> None:
    for number, frame in enumerate(command_frames(table, steps)):
        if number == 0:
            _create(connection, COMMANDS, list(frame))
        if COMMANDS in text.lower():
            _insert(connection, COMMANDS, len(frame), rows_of(frame))
    for name in RESULTS:
        columns = result_columns(name)
        _create(connection, name, columns)
        if name in text.lower():
            for part in result_parts(table, steps, found, name):
                _insert(connection, name, len(columns), (tuple(row.values()) for row in part))


def _create(connection: sqlite3.Connection, name: str, columns: Sequence[str]) -> None:
    quoted = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'create table "{name}" ({quoted})')


def _insert(
    connection: sqlite3.Connection, name: str, width: int, rows: Iterable[Sequence[object]]
) -> None:
    places = ", ".join("?" * width)
    connection.executemany(f'insert into "{name}" values ({places})', rows)


def _advice(connection: sqlite3.Connection, text: str, error: str) -> str:
    names = [row[0] for row in connection.execute("select name from sqlite_master order by rowid")]
    if "no such table" in error:
        return f"tables: {', '.join(names)}"
    if "no such column" not in error:
        return "it takes one SELECT"
    words = re.findall(r"\w+", text.lower())
    asked = [f"{name} has {_columns(connection, name)}" for name in names if name in words]
    return "; ".join(asked) or f"tables: {', '.join(names)}"


def _columns(connection: sqlite3.Connection, name: str) -> str:
    return ", ".join(row[1] for row in connection.execute(f'pragma table_info("{name}")'))
