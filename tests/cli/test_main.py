"""What every command has in common: usage, errors, exit codes, and a quick start."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dielet as package
from dielet.cli.exits import as_typed
from dielet.cli.main import COMMANDS

ROOT = Path(package.__file__).parents[1]


def test_help_names_every_command(dielet, capsys):
    with pytest.raises(SystemExit) as end:
        dielet("--help")
    assert end.value.code == 0
    listed = capsys.readouterr().out
    assert all(f"    {name}" in listed for name in COMMANDS)


def test_no_arguments_is_a_call_for_help(dielet):
    spoken = dielet()
    assert spoken.code == 0 and "dielet demo" in spoken.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_common_options(dielet, capsys, command):
    with pytest.raises(SystemExit):
        dielet(command, "--help")
    listed = capsys.readouterr().out
    assert all(option in listed for option in ("--json", "--verbose", "--quiet", "--debug"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rnu"], "dielet: error: unknown command 'rnu'; did you mean run?"),
        (["xyzzy"], "dielet: error: unknown command 'xyzzy'\n"),
        (["compile", "m", "-o", "d", "--frob", "1"], "unknown option --frob\n"),
        (["compile", "", "-o", "d"], "argument SRC: it is empty; the current directory is written"),
        (["compile", "m", "-o", ""], "argument -o/--out: it is empty"),
        (["run", ""], "argument MODEL: it is empty"),
        (["explain", ""], "argument DIR: it is empty"),
        (["run", "m", "--profile", ""], "argument --profile: it is empty"),
        (["simulate", ""], "it is empty"),
        (["compile", "m", "-o", "d", "--device", ""], "argument --device: it is empty"),
        (["run", "m", "--temprature", "1"], "unknown option --temprature; did you mean --temper"),
        (["run", "m", "--temprature=1"], "unknown option --temprature; did you mean --temper"),
        (["run", "m", "--max-new", "1"], "unknown option --max-new"),
        (["run", "m", "n"], "unexpected argument 'n'"),
        (["run", "m", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["run"], "give one model"),
        (["run", "m", "-d", "n"], "give one model"),
        (["run", "m", "--json"], "--json answers one prompt"),
        (["run", "m", "-v", "-q"], "not allowed with argument"),
        (["compile", "m"], "-o DIR is needed"),
        (["compile", "m", "-o", "d", "--weights", "int5"], "invalid choice: 'int5'"),
        (["compile", "m", "-o", "d", "--group", "48"], "group is 48; use one of 32, 64, 128"),
        (["compile", "m", "-o", "d", "--kv-ladder", "5,x"], "'5,x' is not a list of whole numbers"),
        (["explain"], "the following arguments are required: DIR"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_usage(dielet, argv, message):
    spoken = dielet(*argv)
    assert spoken.code == 2
    assert message in spoken.err
    assert spoken.out == ("" if "--json" not in argv else spoken.out)


def test_an_error_with_json_is_the_one_object(dielet, tmp_path):
    spoken = dielet("run", tmp_path / "nowhere", "-p", "hi", "--json")
    assert spoken.code == 1
    assert spoken.json["kind"] == "MissingFile"
    assert spoken.json["error"] in spoken.err
    assert dielet("run", "--jsn", "--json").json["kind"] == "CommandLineError"


def test_an_error_is_one_line_and_a_traceback_only_on_request(dielet, tmp_path):
    spoken = dielet("explain", tmp_path)
    assert spoken.code == 1
    assert spoken.err.count("\n") == 1
    assert spoken.err.startswith("dielet explain: error: ")
    spoken = dielet("explain", tmp_path, "--debug")
    assert "Traceback" in spoken.err and spoken.err.splitlines()[-1].startswith("dielet explain")


def test_our_own_faults_are_called_that(dielet, monkeypatch):
    import dielet.cli.doctor as doctor

    def fail(args, console):
        raise KeyError("oops")

    monkeypatch.setattr(doctor, "run", fail)
    spoken = dielet("doctor")
    assert spoken.code == 1
    assert "internal error, a bug in dielet: KeyError: 'oops'" in spoken.err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "out of memory"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device"),
    ],
)
def test_what_ends_a_command_has_its_code(dielet, monkeypatch, error, code, message):
    import dielet.cli.doctor as doctor

    def fail(args, console):
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    spoken = dielet("doctor")
    assert spoken.code == code
    assert message in spoken.err and spoken.err.count("\n") == 1


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_command_as_ctrl_c_does(dielet, monkeypatch, number, code):
    import dielet.cli.doctor as doctor

    cleaned = []

    def fail(args, console):
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # a second one does not interrupt the cleaning up
            cleaned.append(True)

    monkeypatch.setattr(doctor, "run", fail)
    spoken = dielet("doctor", "--json")
    assert spoken.code == code and cleaned
    assert spoken.err == f"dielet doctor: ended by {number.name}\n"
    assert spoken.json["error"] == f"ended by {number.name}"
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("usual_signals")
def test_a_signal_that_is_ignored_stays_ignored(dielet, monkeypatch):
    import dielet.cli.doctor as doctor

    monkeypatch.setattr(doctor, "run", lambda args, console: signal.raise_signal(signal.SIGHUP))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        assert dielet("doctor").code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_the_version_is_that_of_the_package(dielet, capsys):
    with pytest.raises(SystemExit):
        dielet("--version")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"dielet {project['version']}\n"


def loaded_by(code: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(run.stdout.split())


def test_importing_and_reading_options_load_nothing_heavy():
    heavy = {"numpy", "llvmlite", "tokenizers", "jinja2", "rich", "msgspec", "asyncio", "inspect"}
    assert not heavy & loaded_by("import dielet")
    heavy.discard("inspect")  # dataclasses
    assert not heavy & loaded_by("from dielet.cli.main import make_parser; make_parser()")


def test_doctor_says_what_there_is(dielet, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # what is in this machine's may be damaged
    spoken = dielet("doctor", "--json")
    found = spoken.json
    assert spoken.code == 0 and found["problems"] == []
    assert found["versions"]["dielet"] == package.__version__
    assert found["processor"]["target"] in found["processor"]["targets"]
    assert found["limits"]["read_gb_s"] > 0 and found["limits"]["int8_gop_s"] > 0
    assert found["processor"]["cores"] >= 1 and found["memory"]["total"] > 1 << 28
    spoken = dielet("doctor")
    assert spoken.out.endswith("ready.\n") and spoken.err == ""


def test_doctor_says_what_is_missing_and_how_to_get_it(dielet, monkeypatch):
    import dielet.cli.doctor as doctor

    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no_such_package"))
    monkeypatch.setattr(doctor, "USEFUL", {"no_such_tool": ("this", "get it")})
    spoken = dielet("doctor")
    assert spoken.code == 1
    assert "problem: no_such_package is not installed; run: pip install no_such_package" in (
        spoken.out
    )
    assert "missing: no_such_tool, for this; run: get it" in spoken.out


def test_arguments_in_errors_are_named_as_they_are_typed():
    said = "what would fit: weights=int8 (1 GB); kv=int8 (2 GB); num_devices=2 (3 GB)"
    assert as_typed(said) == (
        "what would fit: --weights=int8 (1 GB); --kv=int8 (2 GB); --num-devices=2 (3 GB)"
    )
    whole = "decoder weights and kv of 128 tokens; use prefill_chunk of at most 16"
    assert as_typed(whole) == whole.replace("prefill_chunk", "--prefill-chunk")
