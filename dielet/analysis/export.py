"""Writes the tables: CSV, Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dielet.analysis.frames import COMMANDS, RESULTS, Frame, command_frames, result_rows
from dielet.analysis.schema import Analysis
from dielet.analysis.steps import Steps
from dielet.analysis.table import Table
from dielet.errors import Unsupported
from dielet.files import CannotWrite


def write_csv(table: Table, steps: Steps, found: Analysis, folder: str | Path) -> list[Path]:
    """`commands.csv` and one file per part of the analysis, in `folder`; the files.

    Raises CannotWrite.
    """
    written = []
    with _folder(folder) as place:
        path = place / f"{COMMANDS}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            for number, frame in enumerate(command_frames(table, steps)):
                if number == 0:
                    writer.writerow(frame)
                writer.writerows(rows_of(frame))
        written.append(path)
        for name in RESULTS:
            rows = result_rows(found, name)
            if rows:
                path = place / f"{name}.csv"
                with path.open("w", newline="") as file:
                    out = csv.DictWriter(file, rows[0])
                    out.writeheader()
                    out.writerows(rows)
                written.append(path)
    return written


def rows_of(frame: Frame) -> Iterable[Sequence[object]]:
    return zip(*(column.objects() for column in frame.values()), strict=True)


def write_parquet(table: Table, steps: Steps, found: Analysis, folder: str | Path) -> list[Path]:
    """The same as Parquet files; needs the extra `arrow`.  Raises CannotWrite, Unsupported."""
    arrow, parquet = _arrow()
    with _folder(folder) as place:
        path = place / f"{COMMANDS}.parquet"
        writer = None
        for frame in command_frames(table, steps):
            part = arrow.table({name: _array(arrow, column) for name, column in frame.items()})
            writer = writer or parquet.ParquetWriter(path, part.schema)
            writer.write_table(part)
        if writer is not None:
            writer.close()
        written = [path]
        for name in RESULTS:
            rows = result_rows(found, name)
            if rows:
                path = place / f"{name}.parquet"
                parquet.write_table(arrow.Table.from_pylist(rows), path)
                written.append(path)
    return written


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
def _folder(folder: str | Path) -> Iterator[Path]:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise CannotWrite(f"{folder} cannot be written: {reason}; choose another place") from None
