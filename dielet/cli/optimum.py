"""`optimum-rbln-cli --model-id M -o DIR --key value ...`: compile without a script.

Entered by `dielet exec optimum-rbln-cli ...`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dielet.cli.parser import Parser
from dielet.compat import directories, rbln_artefact
from dielet.compat.rbln_models import CLASSES, class_for
from dielet.compat.rbln_options import OPTIONS, PREFIX
from dielet.compat.rbln_windows import Windows
from dielet.compat.transformers import IDLE
from dielet.errors import UsageError
from dielet.image import read_manifest

EXAMPLES = """\
optimum-rbln-cli --model-id Qwen/Qwen3-1.7B -o qwen3 --batch-size 1 --max-seq-len 8192
optimum-rbln-cli --model-id meta-llama/Meta-Llama-3-8B -o llama3 --npu RBLN-CA25 --num-devices 4
optimum-rbln-cli --model-id Qwen/Qwen3-1.7B -o int8 --quantization '{"weights": "int8"}'
optimum-rbln-cli --model-id qwen3 --get-kvcache-num-blocks"""
HUGGING_FACE = (*directories.HUB, *IDLE, "dtype", "torch_dtype", "num_hidden_layers")
TEXTS = ("revision", "cache_dir", "subfolder")  # of those, what looks like a number is none
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def main(words: Sequence[str]) -> int:
    """Run the command line; returns the exit code, or raises what `dielet` reports in one line."""
    parser = _parser()
    args, rest = parser.parse_known_args(list(words))
    if args.list_classes:
        print("\n".join(CLASSES))
        return 0
    if args.examples:
        print(EXAMPLES)
        return 0
    if args.model_id is None:
        parser.error("--model-id is needed: a directory, a hub id, or a compiled model")
    options, theirs = _options(rest)
    hub = {key: theirs.pop(key) for key in directories.HUB if key in theirs}
    source = directories.locate(args.model_id, hub)
    compiled = rbln_artefact.is_artefact(Path(source))
    if args.get_kvcache_num_blocks or _changes_blocks(args):
        return _blocks(Path(source), compiled, args)
    if args.show_rbln_config:
        print(_shown(Path(source), compiled, args.cls))
        return 0
    name = args.cls or class_for(source)
    if name not in CLASSES:
        raise UsageError(f"--class {name} is unknown; there are {', '.join(CLASSES)}")
    options.setdefault("create_runtimes", False)
    given = {PREFIX + key: value for key, value in options.items()}
    model = CLASSES[name].from_pretrained(
        source, True, model_save_dir=args.output, **given, **theirs
    )
    print(f"{name} of {args.model_id} is in {model.directory}")
    return 0


def _parser() -> Parser:
    parser = Parser(prog="optimum-rbln-cli", description="Compile a model for RBLN devices.")
    parser.add_argument("--model-id", "-m", metavar="M", help="directory, hub id, compiled model")
    parser.add_argument("--output", "-o", metavar="DIR", default="./rbln_out")
    parser.add_argument("--class", dest="cls", metavar="C", help="default: by the architecture")
    parser.add_argument("--list-classes", action="store_true")
    parser.add_argument("--show-rbln-config", action="store_true")
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--get-kvcache-num-blocks", action="store_true")
    parser.add_argument("--set-kvcache-num-blocks", type=int, metavar="N")
    parser.add_argument("--set-memory-budget", metavar="B")
    parser.add_argument("--no-style", action="store_true", help="output is plain in any case")
    parser.add_argument("--version", action="version", version=rbln_artefact.OPTIMUM)
    return parser


def _options(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`--key value` pairs: options of rbln, and `--hf-key value` for Hugging Face."""
    options: dict[str, Any] = {}
    hub: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UsageError(f"unexpected argument {word!r}; options are written --key value")
        key, equals, text = word[2:].partition("=")
        alone = not equals and (not rest or rest[0].startswith("--"))
        if not equals:
            text = "true" if alone else rest.pop(0)
        name = key.replace("-", "_")
        if name.startswith("hf_"):
            if name[3:] not in HUGGING_FACE:
                known = ", ".join(each.replace("_", "-") for each in HUGGING_FACE)
                raise UsageError(f"--{key} is unknown; of --hf-* there are {known}")
            if alone and name[3:] in TEXTS:
                raise UsageError(f"--{key} needs a value")
            hub[name[3:]] = _hub_value(name[3:], text)
        else:
            options[name.removeprefix(PREFIX)] = _value(text)
    return options, hub


def _hub_value(name: str, text: str) -> Any:
    is_text = name in TEXTS or (name == "token" and text.lower() not in _WORDS)
    return text if is_text else _value(text)


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _shown(directory: Path, compiled: bool, cls: str | None) -> str:
    if compiled and cls is None:
        return (directory / rbln_artefact.CONFIG).read_text()
    return json.dumps(OPTIONS, indent=2)


def _blocks(directory: Path, compiled: bool, args: Any) -> int:
    """Show, or change, how many KV blocks a compiled model may use."""
    from dielet.compat import rbln_memory

    if not compiled:
        raise UsageError(
            f"{directory} is not compiled yet; KV blocks are counted of a model that is"
        )
    name = rbln_artefact.class_of(directory)
    given = CLASSES[name].config_class()
    config = rbln_artefact.read_config(directory, name, given)
    if _changes_blocks(args):
        config.update({"kvcache_num_blocks": args.set_kvcache_num_blocks or 0})
        if args.set_memory_budget is not None:
            config.update({"memory_budget": _value(args.set_memory_budget)})
        spec = read_manifest(directory).spec
        config.settle(spec.max_position, Windows.in_model(spec))
        rbln_memory.settle_compiled(directory, config)
        content = rbln_artefact.files_of(directory, config, name)[rbln_artefact.CONFIG]
        (directory / rbln_artefact.CONFIG).write_bytes(content)
    print(config.kvcache_num_blocks)
    return 0


def _changes_blocks(args: Any) -> bool:
    """0 is a number of blocks too: as many as there is room for."""
    return args.set_kvcache_num_blocks is not None or args.set_memory_budget is not None
