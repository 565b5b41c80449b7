"""The command line, and tables in other forms."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import msgspec
import pytest

import dielet
from dielet.analysis import Analysis, frames
from dielet.analysis.api import Asked, examine
from dielet.analysis.export import write_csv
from dielet.analysis.frames import COMMANDS, RESULTS
from dielet.analysis.gaps import LONGEST
from dielet.analysis.sql import query
from dielet.cli import main as cli
from tests.analysis.make import DEVICE, NEURAL, Maker, answers, engine, toy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return toy().write(tmp_path / "toy.pb")


def call(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = cli.main(["analyze", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_is_the_analysis(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, path, "--json")
    assert code == 0 and not err and out.count("\n") == 1
    assert msgspec.json.decode(out, type=Analysis) == dielet.analyze(path)
    assert json.loads(out)["schema"] == 1


def test_the_page_says_what_is_missing_first(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, path)
    assert code == 0
    order = [out.index(title) for title in (
        "toy on toy", "Coverage", "no counters", "Phases", "Findings", "Engines", "Gaps",
        "Critical path", "Operations",
    )]  # fmt: skip
    assert order == sorted(order)
    assert "first token after 400 ns" in out and "\x1b" not in out
    assert all(len(line) <= 110 and line == line.rstrip() for line in out.splitlines())


def test_budgets_decide_the_exit_code(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    budget = path.with_name("budget.toml")
    budget.write_text("ttft_ms_max = 1\n")
    code, out, err = call(capsys, path, "--budget", budget)
    assert code == 0 and "Budget kept" in out and not err
    budget.write_text("ttft_ms_max = 0.0001\ntokens_per_s_min = 1\n")
    code, out, err = call(capsys, path, "--budget", budget)
    assert code == 1 and "FAILS" in out
    assert err == (f"dielet analyze: {budget}: ttft_ms_max: 0.0004, at most 0.0001 is asked\n")


def test_what_if_says_its_factor(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, path)
    assert "at half its time" in out
    _, out, _ = call(capsys, path, "--what-if", "copy=0.8", "--what-if", "Task DMA=2")
    out = out.split("Critical path")[1]
    assert "at half its time" not in out and "what if it took this much of its time" in out
    assert "copy x 0.8: -0.5%" in out and "Task DMA x 2: +2.5%" in out


def test_diff_on_the_page(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = answers([10]).write(path.with_name("other.pb"))
    code, out, _ = call(capsys, path, "--diff", other)
    assert code == 0 and f"Since {other}" in out and "added" in out and "removed" in out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--window", "5"], "two times in ms"),
        (["--window", "2:1"], "two times in ms"),
        (["--window", "-1:2"], "one that begins with - is written with ="),
        (["--window=-1:2"], "two times in ms"),
        (["--what-if", "linear"], "KIND=FACTOR"),
        (["--what-if", "linear=-1"], "KIND=FACTOR"),
        (["--what-if", "linear=nan"], "KIND=FACTOR"),
        (["--what-if", "linear=inf"], "KIND=FACTOR"),
        (["--what-if", "nosuch=0.5"], "kinds: copy, linear"),
        (
            ["--sql", "select nonsense from commands"],
            "no such column: nonsense; commands has step,",
        ),
        (["--sql", "select 1 from nowhere"], "no such table: nowhere; tables: commands"),
        (["--sql", "drop table commands"], "not authorized"),
        (["--sql", "select 1; select 2"], "one SELECT"),
        (["--sql", ""], "one SELECT"),
    ],
)
def test_options_that_are_refused(
    path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    code, out, err = call(capsys, path, *argv)
    assert code in (1, 2) and not out and words in err and "Traceback" not in err


def test_directories_need_another_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, tmp_path)
    assert code != 0 and "with --diff" in err


def test_sql(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = (
        "select chiplet, sum(duration_ns) ns, max(bytes) b from commands "
        "where operation like '%up_proj.weight' group by chiplet order by chiplet"
    )
    code, out, _ = call(capsys, path, "--sql", question, "--json")
    assert code == 0
    assert json.loads(out) == {"columns": ["chiplet", "ns", "b"],
                               "rows": [[0, 200, 1600], [1, 260, 1600]], "more": False}  # fmt: skip
    code, out, _ = call(capsys, path, "--sql", "select kind, bound from commands where step = 1 "
                        "and engine = 'Task DMA'")  # fmt: skip
    assert out.splitlines() == ["kind  bound", "copy  setup"]
    code, out, _ = call(capsys, path, "--sql", "select name, median_ns from phases limit 1")
    assert out.splitlines()[1].split() == ["prefill", "300"]


FOR_EVER = "with recursive n(i) as (select 1 union all select i + 1 from n) select {} from n"


def test_sql_of_what_json_has_no_form_for(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, path, "--json", "--sql", "select x'00ff' b, 9e999 i, null n")
    assert code == 0 and json.loads(out)["rows"] == [["00ff", "inf", None]]


def test_sql_writes_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = path.with_name("other.db")
    code, out, err = call(capsys, path, "--sql", f"attach '{other}' as e")
    assert code == 1 and not out and "not authorized" in err
    assert not other.exists()


def test_sql_on_a_full_disk(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("dielet.analysis.sql.rows_of", full)
    code, out, err = call(capsys, path, "--sql", "select * from commands")
    assert code == 1 and not out
    assert err.startswith("dielet analyze: error: the temporary file of --sql cannot be written")


def test_sql_tells_some_rows_of_many(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, path, "--sql", FOR_EVER.format("i"))
    assert code == 0 and out.splitlines()[-1].strip() == "10000"
    assert "only the first 10,000 rows" in err


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_sql_can_be_stopped(
    path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    timer = threading.Timer(1.0, os.kill, (os.getpid(), number))
    timer.start()
    assert call(capsys, path, "--sql", FOR_EVER.format("count(*)"))[0] == code
    timer.join()


def test_csv(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, path, "--csv", tmp_path / "out")
    assert code == 0 and "commands.csv" in err
    with (tmp_path / "out" / "commands.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    copy = next(row for row in rows if row["kind"] == "copy")
    columns = ("step", "phase", "chiplet", "start_ns", "duration_ns")
    assert [copy[name] for name in columns] == ["1", "decode", "0", "885", "10"]
    assert copy["layer"] == "" and copy["operations"] == "" and copy["bound"] == "setup"
    written = {p.stem for p in (tmp_path / "out").iterdir()}
    assert written == {COMMANDS, *RESULTS}


@pytest.mark.parametrize("place", ["file", "taken"])
def test_tables_that_cannot_be_written(
    path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    folder = path.with_name(place)
    if place == "file":
        folder.write_text("")
    else:
        (folder / "commands.csv").mkdir(parents=True)
    code, out, err = call(capsys, path, "--csv", folder, "--json")
    assert code == 1 and out.count("\n") == 1 and json.loads(out)["schema"] == 1
    said = "cannot be written: " if place == "file" else "is a directory, not a file; "
    where = folder if place == "file" else folder / "commands.csv"
    assert err.startswith(f"dielet analyze: error: {where} {said}") and err.count("\n") == 1
    assert sorted(p.name for p in folder.parent.rglob("*") if p.is_file()) == (
        ["file", "toy.pb"] if place == "file" else ["toy.pb"]
    )


@contextmanager
def small_files() -> Iterator[None]:
    """No file may become larger than a kilobyte, as when the disk is full.

    No fixture: pytest's own output may be a file, which it writes to before fixtures end.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("option", ["--csv", "--parquet", "--html"])
def test_a_full_disk_leaves_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    if option == "--parquet":
        pytest.importorskip("pyarrow")
    with small_files():
        code, _, err = call(capsys, path, option, path.with_name("out"))
    assert code == 1 and "cannot be written: " in err and err.count("\n") == 1
    assert [p.name for p in path.parent.iterdir()] == ["toy.pb"]


def test_tables_appear_together(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there stays when the last of them is not reached, whatever the reason."""
    done = examine(path)
    folder = tmp_path / "out"
    write_csv(done.table, done.steps, done.found, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def interrupted(found: Analysis, name: str) -> list[dict[str, object]]:
        if name == RESULTS[-1]:
            raise KeyboardInterrupt
        return []

    monkeypatch.setattr("dielet.analysis.export.result_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_csv(done.table, done.steps, done.found, folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    with pytest.raises(KeyboardInterrupt):
        write_csv(done.table, done.steps, done.found, tmp_path / "deep" / "new")
    assert not (tmp_path / "deep").exists()


def test_tables_without_rows_have_their_columns(tmp_path: Path) -> None:
    """Nothing of an older trace is left in the folder, and SQL finds every table."""
    one = Maker()
    one.slice(engine(0, NEURAL), "i0_0_W0_a_0", 0, 10)
    done = examine(one.write(tmp_path / "one.pb"))
    assert not done.found.gaps
    write_csv(done.table, done.steps, done.found, tmp_path / "out")
    text = (tmp_path / "out" / "gaps.csv").read_text()
    assert text.startswith("step,phase,chiplet,engine,") and text.count("\n") == 1
    answer = query(done.table, done.steps, done.found, "select count(*), max(engine) from gaps")
    assert answer.rows == [(0, None)]


def test_every_list_has_its_table(path: Path, tmp_path: Path) -> None:
    """All that the object has as lists of rows, the diff's and those within others included."""
    trace = toy()
    trace.counter((DEVICE, "Chiplet 1", "DRAM bytes in use"), "bytes", {0: 1.0, 500: 3.0})
    done = examine(trace.write(tmp_path / "a.pb"), Asked(diff=path))

    def rows(text: str) -> list[tuple[object, ...]]:
        return query(done.table, done.steps, done.found, text).rows

    lists = {name for name, value in msgspec.to_builtins(done.found).items()
             if isinstance(value, tuple | list)}  # fmt: skip
    assert lists - {"gantts"} <= set(RESULTS)  # those are columns for a picture
    found = done.found
    assert rows("select rule, cost_ns from findings") == [
        (f.rule, f.cost_ns) for f in found.findings
    ]
    assert rows("select phase, per_step_ns from paths where phase = 'decode'") == [("decode", 400)]
    assert rows("select chiplet, time_ns, value from counters order by time_ns") == [
        (1, 0, 1.0), (1, 500, 3.0),
    ]  # fmt: skip
    layers = dict(rows("select layer, sum(mean_ns) from heat where phase = 'decode' group by 1"))
    assert layers == {0: 200 + 260 + 100 + 110, 1: 80}
    assert rows("select sum(bytes) from routes where phase = 'prefill'") == [(30,)]
    assert rows("select sum(bytes) from owners")[0][0] == sum(o.bytes for o in found.memory.owners)
    assert found.diff is not None
    assert rows("select count(*) from changes") == [(len(found.diff.changes),)]
    assert rows("select before_ns from totals where phase = 'decode'") == [(400,)]
    assert rows("select count(*) from moved") == [(len(found.traffic.moved),)]
    assert rows("select count(*) from rereads") == [(len(found.traffic.rereads),)]
    assert rows("select text from notes") == [(n.text,) for n in found.coverage.notes]


def test_the_table_of_gaps_has_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 waits of n ns each, of which the analysis has the longest."""
    t = Maker(device_clock="modelled")
    at = 0
    for n in range(1, 302):
        t.slice(engine(0, NEURAL), f"i0_0_W0_a{n}_0", at, at + 5)
        at += 5 + n
    done = examine(t.write(tmp_path / "a.pb"))
    assert len(done.found.gaps) == LONGEST < 300
    monkeypatch.setattr(frames, "FRAME_ROWS", 7)
    write_csv(done.table, done.steps, done.found, tmp_path / "out")
    with (tmp_path / "out" / "gaps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["duration_ns"]) for row in rows] == list(range(1, 301))
    assert rows[0]["before"] == "a2_0 (chiplet 0)" and rows[0]["cause"] == "unknown"
    text = "select count(*), sum(duration_ns) from gaps"
    assert query(done.table, done.steps, done.found, text).rows == [(300, 300 * 301 // 2)]


def test_tables_are_written_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame is some runs of a kind, so that memory does not depend on the trace."""
    done = examine(answers([10] * 9).write(path.with_name("nine.pb")))

    def starts() -> list[list[object]]:
        return [f["start_ns"].objects() for f in frames.command_frames(done.table, done.steps)]

    whole = starts()
    monkeypatch.setattr(frames, "FRAME_ROWS", 2)
    parts = starts()
    assert max(map(len, parts)) == 2 and len(parts) == 6
    assert list(chain(*parts)) == list(chain(*whole))


def test_parquet(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    code, _, _ = call(capsys, path, "--parquet", tmp_path / "out")
    assert code == 0
    rows = parquet.read_table(tmp_path / "out" / "commands.parquet").to_pylist()
    assert len(rows) == 8
    copy = next(row for row in rows if row["kind"] == "copy")
    assert (copy["start_ns"], copy["layer"], copy["operations"], copy["bound"]) == (
        885, None, None, "setup",
    )  # fmt: skip
    gaps = parquet.read_table(tmp_path / "out" / "gaps.parquet").to_pylist()
    assert {gap["chiplet"] for gap in gaps if gap["step"] < 0} == {None} and len(gaps) > 8
    steps = parquet.read_table(tmp_path / "out" / "steps.parquet").to_pylist()
    assert [step["duration_ns"] for step in steps] == [300, 500]
