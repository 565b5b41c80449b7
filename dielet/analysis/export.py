"""Writes the tables: CSV, Parquet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, get_type_hints

from dielet.analysis.frames import (
    COMMANDS,
    GAPS,
    RESULTS,
    Frame,
    Row,
    command_frames,
    gap_rows,
    result_columns,
    result_rows,
)
from dielet.analysis.schema import Analysis, Gap
from dielet.analysis.steps import Steps
from dielet.analysis.table import Table
from dielet.errors import Unsupported
from dielet.files import CannotWrite, whole_file

NewFile = Callable[[str], Path]
"""Gives the place where to write the table of a name."""


def write_csv(table: Table, steps: Steps, found: Analysis, folder: str | Path) -> list[Path]:
    """`commands.csv` and one file per part of the analysis, in `folder`: all of them or none.

    Raises CannotWrite.
    """
    with _tables(folder, ".csv") as (written, new):
        with new(COMMANDS).open("w", newline="") as file:
            writer = csv.writer(file)
            for number, frame in enumerate(command_frames(table, steps)):
                if number == 0:
                    writer.writerow(frame)
                writer.writerows(rows_of(frame))
        for name in RESULTS:
            with new(name).open("w", newline="") as file:
                out = csv.DictWriter(file, result_columns(name))
                out.writeheader()
                for part in result_parts(table, steps, found, name):
                    out.writerows(part)
    return written


def result_parts(table: Table, steps: Steps, found: Analysis, name: str) -> Iterator[list[Row]]:
    """The rows of a table beside that of the commands."""
    if name == GAPS:
        return gap_rows(table, steps)
    return iter([result_rows(found, name)])


def rows_of(frame: Frame) -> Iterable[Sequence[object]]:
    return zip(*(column.objects() for column in frame.values()), strict=True)


def write_parquet(table: Table, steps: Steps, found: Analysis, folder: str | Path) -> list[Path]:
    """The same as Parquet files; needs the extra `arrow`.  Raises CannotWrite, Unsupported."""
    arrow, parquet = _arrow()
    with _tables(folder, ".parquet") as (written, new):
        with ExitStack() as opened:
            path, writer = new(COMMANDS), None
            for frame in command_frames(table, steps):
                part = arrow.table({name: _array(arrow, column) for name, column in frame.items()})
                writer = writer or opened.enter_context(parquet.ParquetWriter(path, part.schema))
                writer.write_table(part)
        for name in RESULTS:
            if name == GAPS:
                schema = _gap_schema(arrow)
                with parquet.ParquetWriter(new(name), schema) as out:
                    for part in gap_rows(table, steps):
                        out.write_table(arrow.Table.from_pylist(part, schema))
                continue
            rows = result_rows(found, name)
            columns = {key: [row[key] for row in rows] for key in result_columns(name)}
            parquet.write_table(arrow.table(columns), new(name))
    return written


def _gap_schema(arrow: Any) -> Any:
    """Said beforehand: a first part may have no chiplet at all."""
    types = get_type_hints(Gap)
    return arrow.schema(
        [(key, arrow.string() if types[key] is str else arrow.int64()) for key in types]
    )


def _array(arrow: Any, column: Any) -> Any:
    """Texts as plain text, which Parquet keeps as a dictionary by itself."""
    if column.texts is None:
        mask = column.values == -1 if column.missing else None
        return arrow.array(column.values, mask=mask)
    codes = arrow.array(column.values.astype("int32"), mask=column.values < 0)
    texts = arrow.array(list(column.texts), arrow.string())
    return arrow.DictionaryArray.from_arrays(codes, texts).cast(arrow.string())


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise Unsupported(
            "Parquet needs pyarrow, which is not installed; pip install 'dielet[arrow]', "
            "or write --csv"
        ) from None
    return pyarrow, pyarrow.parquet


@contextmanager
def _tables(folder: str | Path, ending: str) -> Iterator[tuple[list[Path], NewFile]]:
    """Files in `folder` that appear together at the end: after an error there is nothing new."""
    folder = Path(folder)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    written: list[Path] = []
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(
                f"{folder} cannot be written: {error.strerror}; choose another place"
            ) from None
        with ExitStack() as files:

            def new(name: str) -> Path:
                written.append(folder / f"{name}{ending}")
                return files.enter_context(whole_file(written[-1]))

            yield written, new
    except BaseException:
        for place in made:
            with suppress(OSError):
                place.rmdir()
        raise
