"""What each shell offers after a few words, asked of the shell itself."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from dielet.cli.completion import commands
from dielet.cli.main import COMMANDS
from dielet.devices import built_in

SHELLS = ("bash", "zsh", "fish")
FILES = ("model.gguf", "a device.toml", "trace.pb", "trace.txt", "out dir/inner/x.toml")


@pytest.fixture(params=SHELLS)
def complete(request, dielet, tmp_path, monkeypatch):
    """line -> what the shell offers in place of its last word, in a directory with FILES."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / f"_dielet_{shell}"
    script.write_text(dielet("completion", shell).out)
    here = tmp_path / "here"
    for name in FILES:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("")
    ask = {"bash": ask_bash, "zsh": ask_zsh, "fish": ask_fish}[shell]
    return lambda line: ask(script, line, here)


def shell_run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def ask_bash(script: Path, line: str, cwd: Path) -> set[str]:
    # Interactive bash divides at = too, and has compopt only while it completes.
    words = [w for word in line.split(" ") for w in re.split("(=)", word) if w or "=" not in word]
    code = f"""
        source {shlex.quote(str(script))}
        compopt() {{ :; }}
        COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
        _dielet
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return set(shell_run("bash", "--norc", "-c", code, cwd=cwd).split("\n")) - {""}


def ask_fish(script: Path, line: str, cwd: Path) -> set[str]:
    code = f"source {shlex.quote(str(script))}; complete -C {shlex.quote(line)}"
    offered = shell_run("fish", "--no-config", "-c", code, cwd=cwd).splitlines()
    found = {one.split("\t")[0].rstrip("/") for one in offered}
    return {one.partition("=")[2] if "=" in one else one for one in found}


def ask_zsh(script: Path, line: str, cwd: Path) -> set[str]:
    """An interactive zsh in a terminal of its own, whose matches are caught as they are added."""
    code = f"""
        autoload -Uz compinit && compinit -D -u
        source {shlex.quote(str(script))}
        compadd () {{
            # -O, -A and -D only compute matches; nothing is offered by them.
            if (( ${{@[(I)-[OAD]*]}} )); then builtin compadd "$@"; return; fi
            local -a hits; builtin compadd -A hits "$@"
            (( $#hits )) && print -rl -- "HIT "$^hits
            builtin compadd "$@"
        }}
        zle -C offer list-choices _main_complete
        ask () {{ zle offer; print DONE; exit }}
        zle -N ask
        bindkey '^I' ask
        PS1=REA; PS1=${{PS1}}DY
    """
    (cwd / ".zshrc").write_text(code)
    said = in_terminal(["zsh", "-i"], cwd, [("READY", line + "\t"), ("DONE", "")])
    return {one.strip().rstrip("/") for one in re.findall(r"HIT ([^\r\n]+)", said)}


def in_terminal(command: list[str], cwd: Path, talk: list[tuple[str, str]]) -> str:
    """Wait for each text, type what follows it, and give all that was said."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(cwd)
        env = {"PATH": os.environ["PATH"], "HOME": str(cwd), "ZDOTDIR": str(cwd), "TERM": "dumb"}
        os.execvpe(command[0], command, env)
    said, begin = "", 0
    deadline = time.monotonic() + 30
    try:
        for wanted, typed in talk:
            while wanted not in said[begin:]:
                ready = select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]
                assert ready, f"{wanted} does not come: {said!r}"
                said += os.read(terminal, 4096).decode(errors="replace")
            begin = len(said)
            os.write(terminal, typed.encode())
    finally:
        os.close(terminal)
        os.waitpid(child, 0)
    return said


def test_commands_and_their_beginnings(complete):
    assert complete("dielet ") >= set(COMMANDS)
    assert complete("dielet com") == {"compile", "completion"}
    assert complete("dielet xyz") == set()


def test_options_of_each_command(complete):
    assert {"--version", "--help"} <= complete("dielet --")
    assert complete("dielet compile --chip") == {"--chiplets"}
    assert complete("dielet run --top") == {"--top-k", "--top-p"}
    assert complete("dielet run --chip") == set()
    assert complete("dielet run m -p hello --no-th") == {"--no-thinking"}


def test_values_of_options(complete):
    assert complete("dielet compile m --weights ") == {"bf16", "int8", "int4"}
    assert complete("dielet compile m --weights int") == {"int8", "int4"}
    assert complete("dielet compile m --weights=int") == {"int8", "int4"}
    assert complete("dielet compile m --group 6") == {"64"}
    assert complete("dielet completion ") == set(SHELLS)


def test_devices_and_their_files(complete):
    for line in ("compile m --device ", "simulate m --device ", "devices "):
        offered = {one.replace("\\", "") for one in complete(f"dielet {line}")}
        assert set(built_in()) <= offered and "a device.toml" in offered, line
        assert not {"trace.pb", "model.gguf"} & offered, line
    assert complete("dielet devices reb") == {"rebel100"}


def test_paths_where_paths_are_expected(complete):
    def offered(line: str) -> set[str]:
        return {one.replace("\\", "") for one in complete(f"dielet {line}")}

    assert {"model.gguf", "trace.pb", "out dir"} <= offered("compile ")
    assert offered("compile m -o ") == {"out dir"}
    assert "trace.pb" in offered("analyze tr") and "trace.txt" not in offered("analyze tr")
    assert offered("run m --seed ") == set(), "a number"
    assert offered("run m -p tr") == set(), "a text"


def test_every_option_of_every_command_is_known_to_every_shell(dielet):
    scripts = {shell: dielet("completion", shell).out for shell in SHELLS}
    for command in commands():
        for option in command.options:
            for name in option.names:
                fish = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                assert name in scripts["bash"] and name in scripts["zsh"], (command.name, name)
                assert fish in scripts["fish"], (command.name, name)


def test_a_name_with_a_space_is_typed_with_it(dielet, tmp_path):
    """In a real terminal, by the Tab key."""
    script = tmp_path / "script"
    script.write_text(dielet("completion", "bash").out)
    (tmp_path / "a device.toml").write_text("")
    shown = 'dielet () { echo "GOT <$2>"; }'
    said = in_terminal(
        ["bash", "--norc", "-i"],
        tmp_path,
        [
            ("bash-", f"source {script}; {shown}; PS1=REA; PS1=${{PS1}}DY\n"),
            ("READY", "dielet devices a\\ d\t\n"),
            ("READY", "exit\n"),
        ],
    )
    assert "GOT <a device.toml>" in said


def test_the_script_is_the_one_object_of_json(dielet):
    spoken = dielet("completion", "bash", "--json")
    assert spoken.json == {"shell": "bash", "script": dielet("completion", "bash").out}
    assert dielet("completion", "tcsh").code == 2
