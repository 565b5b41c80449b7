"""Completion of what `completion.commands` lists, in the languages of three shells."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from dielet.cli.completion import Command, Option, Value

_BASH = r"""# Completion of dielet in bash; made by: dielet completion bash
_dielet_asks() {
    # What may follow: sets paths ("", dir, file), ending and words; false where nothing does.
    paths= ending= words=
    case "$1" in
%s
    *) return 1 ;;
    esac
}

_dielet() {
    local current=${COMP_WORDS[COMP_CWORD]} command= option= place=0 i word paths ending words
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $word == "=" ]]; then
            continue  # --option=value comes as three words
        elif [[ $word == -?* ]]; then
            option=
            _dielet_asks "$command $word" && option=$word
        elif [[ $option ]]; then
            option=
        elif [[ ! $command ]]; then
            command=$word
        else
            place=$((place + 1))
        fi
    done
    [[ $current == "=" ]] && current=
    if [[ $option && $current != -* ]]; then
        _dielet_asks "$command $option"
    elif [[ $current == -* ]]; then
        _dielet_asks "$command options"
    else
        _dielet_asks "$command $place" || _dielet_asks "$command rest" || return 0
    fi
    mapfile -t COMPREPLY < <(
        compgen -W "$words" -- "$current"
        [[ $paths ]] && compgen -d -- "$current"
        [[ $paths == file ]] && compgen -f -X "!*$ending" -- "$current"
    )
    [[ $paths ]] && compopt -o filenames
    if ((${#COMPREPLY[@]} > 1)); then
        mapfile -t COMPREPLY < <(printf '%%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort -u)
    fi
    return 0
}

complete -F _dielet dielet
"""


def bash(commands: list[Command]) -> str:
    def asks(key: str, value: Value) -> str:
        parts = [f"words={shlex.quote(' '.join(value.words))}"] if value.words else []
        parts += [f"paths={value.paths}"] if value.paths else []
        parts += [f"ending={value.ending}"] if value.ending else []
        return f"    {key}) {' '.join(parts) or ':'} ;;"

    lines = []
    for command in commands:
        name = command.name
        for number, value in enumerate(command.places):
            lines.append(asks(f'"{name} {number}"', value))
        if command.repeats:
            lines.append(asks(f'"{name} rest"', command.places[-1]))
        every = Value(words=tuple(n for option in command.options for n in option.names))
        lines.append(asks(f'"{name} options"', every))
        for option in command.options:
            if option.value is not None:
                key = "|".join(f'"{name} {n}"' for n in option.names)
                lines.append(asks(key, option.value))
    return _BASH % "\n".join(lines)


_ZSH = r"""#compdef dielet
# Completion of dielet in zsh; made by: dielet completion zsh
_dielet() {
    local context state state_descr line curcontext=$curcontext
    local -A opt_args
    local -a commands
    commands=(
%s
    )
    _arguments -C \
%s \
        '1:command:->command' '*::argument:->argument'
    case $state in
    command) _describe command commands ;;
    argument)
        case $words[1] in
%s
        esac ;;
    esac
}

_dielet_either() {
    # Some words, and files of an ending.
    _alternative "words:word:(${argv[2,-1]})" "files:file:_files -g '*$1(-.)'"
}

if [[ $funcstack[1] == _dielet ]]; then
    _dielet "$@"
else
    compdef _dielet dielet
fi
"""


def zsh(commands: list[Command]) -> str:
    top, *others = commands
    listed = [f"        {shlex.quote(f'{c.name}:{c.help}')}" for c in others]
    options = [f"        {shlex.quote(spec)}" for option in top.options for spec in _specs(option)]
    cases = []
    for command in others:
        specs = [spec for option in command.options for spec in _specs(option)]
        for number, value in enumerate(command.places, 1):
            last = number == len(command.places) and command.repeats
            specs.append(f"{'*' if last else number}:{_plain(value.label)}:{_action(value)}")
        quoted = " \\\n            ".join(map(shlex.quote, specs))
        cases.append(f"        {command.name}) _arguments \\\n            {quoted} ;;")
    return _ZSH % ("\n".join(listed), " \\\n".join(options), "\n".join(cases))


def _specs(option: Option) -> Iterator[str]:
    """As `_arguments` describes options: --name=[help]:label:action."""
    for name in option.names:
        others = " ".join(n for n in option.names if n != name)
        before = "*" if option.repeated else f"({others})" if others else ""
        if option.value is None:
            yield f"{before}{name}[{_plain(option.help)}]"
            continue
        equals = "=" if name.startswith("--") else ""
        label, action = _plain(option.value.label), _action(option.value)
        yield f"{before}{name}{equals}[{_plain(option.help)}]:{label}:{action}"


def _action(value: Value) -> str:
    files = {"": "", "dir": "_files -/", "file": "_files"}[value.paths]
    if value.ending:
        files = f'_files -g "*{value.ending}(-.)"'
    if value.words and files:
        # The space: called with these arguments alone.
        return f" _dielet_either {value.ending} {' '.join(value.words)}"
    return f"({' '.join(value.words)})" if value.words else files


def _plain(text: str) -> str:
    """Without what `_arguments` would read as its own."""
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    return text


_FISH = r"""# Completion of dielet in fish; made by: dielet completion fish
function __dielet_files -a ending
    # fish's own lists files of other endings too, after these.
    __fish_complete_suffix $ending | string match -r -- "^[^\t]*(?:/|\\$ending)(?:\t.*)?\$"
end

complete -c dielet -f
%s
"""


def fish(commands: list[Command]) -> str:
    top, *others = commands
    start = "__fish_use_subcommand"
    lines = [_fish(start, option) for option in top.options]
    for command in others:
        about = _fish_text(command.help)
        lines.append(f"complete -c dielet -n {start} -a {command.name} -d {about}")
        here = f"'__fish_seen_subcommand_from {command.name}'"
        lines += [_fish(here, option) for option in command.options]
        for value in dict.fromkeys(command.places):
            if values := _fish_values(value):
                lines.append(f"complete -c dielet -n {here} {values}")
    return _FISH % "\n".join(lines)


def _fish(condition: str, option: Option) -> str:
    kinds = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
    parts = ["complete -c dielet", f"-n {condition}", *kinds]
    if option.value is not None:
        parts += ["-x", _fish_values(option.value)]
    parts.append(f"-d {_fish_text(option.help)}")
    return " ".join(part for part in parts if part)


def _fish_values(value: Value) -> str:
    words = list(value.words)
    if value.ending:
        words.append(f"(__dielet_files {value.ending})")
    elif value.paths:
        kind = "directories" if value.paths == "dir" else "path"
        words.append(f"(__fish_complete_{kind})")
    return f"-a '{' '.join(words)}'" if words else ""


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
