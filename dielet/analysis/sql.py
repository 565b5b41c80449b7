"""SQL over the tables, with the engine that comes with Python.

SQLite is enough for tables of this kind and needs no package; a trace of a million commands is
loaded in a few seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dielet.analysis.export import rows_of
from dielet.analysis.frames import COMMANDS, RESULTS, command_frames, result_rows
from dielet.analysis.schema import Analysis
from dielet.analysis.steps import Steps
from dielet.analysis.table import Table
from dielet.errors import UsageError


@dataclass(frozen=True)
class Answer:
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


def query(table: Table, steps: Steps, found: Analysis, text: str) -> Answer:
    """The answer to one SELECT over `commands` and the parts of the analysis.

    Raises UsageError with SQLite's words, and the tables and columns that there are.
    """
    connection = sqlite3.connect(":memory:")
    try:
        _load(connection, table, steps, found, text)
        connection.execute("pragma query_only = on")
        try:
            cursor = connection.execute(text)
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise UsageError(f"--sql: {error}; {_described(connection)}") from None
        if cursor.description is None:
            raise UsageError("--sql is not a question; it takes one SELECT")
        return Answer(tuple(column[0] for column in cursor.description), rows)
    finally:
        connection.close()


def _load(
    connection: sqlite3.Connection, table: Table, steps: Steps, found: Analysis, text: str
) -> None:
    for number, frame in enumerate(command_frames(table, steps)):
        if number == 0:
            _create(connection, COMMANDS, list(frame))
        if COMMANDS in text.lower():
            _insert(connection, COMMANDS, len(frame), rows_of(frame))
    for name in RESULTS:
        rows = result_rows(found, name)
        if rows:
            _create(connection, name, list(rows[0]))
            _insert(connection, name, len(rows[0]), (tuple(row.values()) for row in rows))


def _create(connection: sqlite3.Connection, name: str, columns: Sequence[str]) -> None:
    quoted = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f'create table "{name}" ({quoted})')


def _insert(
    connection: sqlite3.Connection, name: str, width: int, rows: Iterable[Sequence[object]]
) -> None:
    places = ", ".join("?" * width)
    connection.executemany(f'insert into "{name}" values ({places})', rows)


def _described(connection: sqlite3.Connection) -> str:
    names = [row[0] for row in connection.execute("select name from sqlite_master order by rowid")]
    columns = [row[1] for row in connection.execute(f'pragma table_info("{COMMANDS}")')]
    return f"tables: {', '.join(names)}; {COMMANDS} has {', '.join(columns)}"
