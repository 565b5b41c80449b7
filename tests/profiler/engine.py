"""Perfetto's own engine, asked in SQL: a `trace_processor_shell` on PATH if there is one, or else
the trace processor as Perfetto's site runs it, here under Node."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

from tests.data import trace_processor_dir

SCRIPT = Path(__file__).with_name("engine.cjs")
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
PART = 4 << 20

Row = dict[str, Any]


@cache
def protos() -> ProtoFactory:
    return ProtoFactory(PlatformDelegate())


def ask(trace: Path, queries: Sequence[str]) -> list[list[Row]]:
    """The rows that each query gives of a trace; an error of the engine fails the assertion."""
    shell = shutil.which("trace_processor_shell")
    if shell is not None:
        return _of_shell(shell, trace, queries)
    requests = protos().TraceProcessorRpcStream()
    data = trace.read_bytes()
    for at in range(0, len(data), PART):
        requests.msg.add(request=APPEND, append_trace_data=data[at : at + PART])
    requests.msg.add(request=FINALIZE)
    for sql in queries:
        requests.msg.add(request=QUERY).query_args.sql_query = sql
    for number, message in enumerate(requests.msg):
        message.seq = number
    done = subprocess.run(
        ["node", str(SCRIPT), str(trace_processor_dir())],
        input=requests.SerializeToString(), capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return _tables(done.stdout, len(queries))


def _of_shell(shell: str, trace: Path, queries: Sequence[str]) -> list[list[Row]]:
    config = TraceProcessorConfig(bin_path=shell)
    with TraceProcessor(trace=str(trace), config=config) as engine:
        return [[dict(vars(row)) for row in engine.query(sql)] for sql in queries]


def _tables(replies: bytes, count: int) -> list[list[Row]]:
    stream = protos().TraceProcessorRpcStream.FromString(replies)
    tables: list[list[Row]] = []
    names: list[str] = []
    batches: list[Any] = []
    for message in stream.msg:
        assert not message.append_result.error and not message.finalize_data_result.error
        if message.response != QUERY:
            continue
        result = message.query_result
        assert not result.error, result.error
        names = names or list(result.column_names)
        batches += result.batch
        if result.batch[-1].is_last_batch:
            rows = QueryResultIterator(names, batches)
            tables.append([{name: getattr(row, name) for name in names} for row in rows])
            names, batches = [], []
    assert len(tables) == count
    return tables
