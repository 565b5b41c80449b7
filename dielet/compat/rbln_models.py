"""The classes of `optimum.rbln` for causal language models, over dielet's programs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from dielet.checkpoint.open import open_config
from dielet.compat import directories, rbln_artefact, rbln_memory, rbln_tracing
from dielet.compat.changes import Changes
from dielet.compat.rbln_checks import GROUPS
from dielet.compat.rbln_errors import NoBlock, NoRuntime, NotPossible
from dielet.compat.rbln_options import PREFIX, RBLNDecoderOnlyModelForCausalLMConfig
from dielet.compat.rbln_windows import Windows
from dielet.compat.rows import Rows
from dielet.compat.said import say_once
from dielet.compat.transformers import IDLE, DieletForCausalLM
from dielet.errors import CapacityError, DamagedFile, MissingFile, Unsupported, UsageError
from dielet.generate.text import GENERATION_CONFIG
from dielet.host import load_runtime
from dielet.host.runtime import Runtime
from dielet.image import read_manifest
from dielet.image.replace import is_replaceable

Config = RBLNDecoderOnlyModelForCausalLMConfig


class RBLNDecoderOnlyModelForCausalLM(DieletForCausalLM):
    """A decoder-only model, compiled by `from_pretrained(..., export=True)` or loaded.

    rbln_config: its options, settled.
    """

    model_types: tuple[str, ...] = ()  # of the checkpoints that it takes; () takes any
    config_class: type[Config] = Config
    _ends_at_capacity = False
    _logits_kept = 1

    def __init__(self, runtime: Runtime | None, directory: Path, rbln_config: Config) -> None:
        super().__init__(runtime, directory)
        self.rbln_config = rbln_config

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        export: bool | None = None,
        rbln_config: Mapping[str, Any] | Config | None = None,
        *,
        model_save_dir: str | Path | None = None,
        **given: Any,
    ) -> RBLNDecoderOnlyModelForCausalLM:
        """Compile (export=True), load (False), or load what is compiled and else compile (None).

        Keywords that begin with `rbln_` are options, and go before those of `rbln_config`.
        """
        config = cls._config(rbln_config, given)
        hub = {name: given.pop(name, None) for name in directories.HUB}
        source = directories.locate(model_id, hub)
        changes = Changes.taken(given, source)
        layers = given.pop("num_hidden_layers", changes.layers)
        _idle(given)
        if export is None:
            export = not rbln_artefact.is_artefact(Path(source))
        if export:
            return changes.applied(cls._compile(source, config, model_save_dir, layers))
        directory = Path(source)
        if not directory.is_dir():
            raise MissingFile(f"{directory} is no directory; compile with export=True first")
        return changes.applied(cls._load(directory, config, layers))

    @classmethod
    def from_model(
        cls,
        model: Any,
        rbln_config: Mapping[str, Any] | Config | None = None,
        *,
        model_save_dir: str | Path | None = None,
        **given: Any,
    ) -> RBLNDecoderOnlyModelForCausalLM:
        """Compile a model of transformers that is in memory."""
        config = cls._config(rbln_config, given)
        name = Path(getattr(model, "name_or_path", "")).name or model.config.model_type
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / name
            model.save_pretrained(source)
            changes = Changes.taken(given, source)
            layers = given.pop("num_hidden_layers", changes.layers)
            _idle(given)
            identity = directories.folder_identity(source)
            return changes.applied(cls._compile(source, config, model_save_dir, layers, identity))

    @classmethod
    def _config(
        cls, rbln_config: Mapping[str, Any] | Config | None, given: dict[str, Any]
    ) -> Config:
        """Take the options out of `given`."""
        options = {name: given.pop(name) for name in [*given] if name.startswith(PREFIX)}
        if type(rbln_config) is cls.config_class:
            config = cls.config_class(**{n: getattr(rbln_config, n) for n in rbln_config.given})
        elif rbln_config is None or isinstance(rbln_config, Mapping):
            config = cls.config_class(**(rbln_config or {}))
        else:
            kind = type(rbln_config).__name__
            raise UsageError(f"rbln_config is a {kind}; give a dict or a {cls.__name__}Config")
        config.update(options)
        return config

    @classmethod
    def _compile(
        cls,
        source: str | Path,
        config: Config,
        out: str | Path | None,
        layers: int | None,
        identity: str | None = None,
    ) -> RBLNDecoderOnlyModelForCausalLM:
        directories.refuse_itself(source, out)
        spec = open_config(source)
        if cls.model_types and spec.model_type not in cls.model_types:
            right = CLASS_OF.get(spec.model_type, "another class")
            raise UsageError(f"{source} is a {spec.model_type} model: compile it with {right}, "
                             f"not {cls.__name__}")  # fmt: skip
        if config.dtype not in (None, "bfloat16"):
            say_once(f"dtype {config.dtype} has no effect: weights are bfloat16 or as quantized")
        config.fill(dtype="bfloat16")
        first = spec.first(layers) if type(layers) is int else spec
        config.settle(spec.max_position, Windows.in_model(first))
        options = config.compile_options(layers)
        rbln_memory.settle_blocks(source, options, config)
        try:
            if out is not None and not is_replaceable(Path(out)):
                directory = directories.compiled_among(source, options, Path(out))
            else:
                directory = directories.compiled(source, options, out, identity)
        except CapacityError as error:
            raise CapacityError(_as_rbln(str(error))) from error
        if out is not None:
            for name, content in rbln_artefact.files_of(directory, config, cls.__name__).items():
                (directory / name).write_bytes(content)
            rbln_artefact.remove_stale(directory, config)
        return cls(cls._runtime_for(directory, config), directory, config)

    @classmethod
    def _load(
        cls, directory: Path, given: Config, layers: int | None
    ) -> RBLNDecoderOnlyModelForCausalLM:
        config = rbln_artefact.read_config(directory, cls.__name__, given)
        manifest = read_manifest(directory)
        spec = manifest.spec
        if layers not in (None, spec.layers):
            raise UsageError(
                f"num_hidden_layers is {layers!r:.80}, and the model was compiled with "
                f"{spec.layers}; leave it out, or compile again with export=True"
            )
        config.settle(spec.max_position, Windows.in_model(spec))
        rbln_artefact.check_compiled(directory, config, manifest)
        rbln_artefact.check_models(directory, config)
        directories.take_over_texts(directory)
        return cls(cls._runtime_for(directory, config), directory, config)

    @staticmethod
    def _runtime_for(directory: Path, config: Config) -> Runtime | None:
        if config.create_runtimes is False:
            return None
        profiler = config.activate_profiler
        if profiler is None and rbln_tracing.switched_on():
            profiler = True
        if profiler:
            rbln_tracing.begin_with_process()
        try:
            return load_runtime(directory, profiler=profiler)
        except (DamagedFile, MissingFile, CapacityError, MemoryError) as error:
            raise NoRuntime(
                f"the runtime cannot be created: {error or 'out of memory'}; "
                "rbln_create_runtimes=False compiles without one"
            ) from error

    def save_pretrained(
        self, save_directory: str | Path, push_to_hub: bool = False, **ignored: Any
    ) -> None:
        """Copy the artefacts; other files in `save_directory` stay."""
        if push_to_hub and not ignored.get("repo_id"):
            raise UsageError("push_to_hub needs repo_id")
        directories.refuse_push(push_to_hub)
        if Path(save_directory).is_file():
            say_once(f"{save_directory} is a file, so nothing is saved; name a directory")
            return
        texts = rbln_artefact.files_of(self.directory, self.rbln_config, type(self).__name__)
        texts[GENERATION_CONFIG] = self.generation_config.to_json_string(use_diff=True).encode()
        directories.save(self.directory, save_directory, texts)
        rbln_artefact.remove_stale(Path(save_directory).expanduser(), self.rbln_config)

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise NoRuntime(
                "the runtime is not available, since create_runtimes is False; load the model "
                "without it to run it"
            )
        return self._runtime

    def _check_compiled_for(self, real: np.ndarray, rows: Rows) -> None:
        config = self.rbln_config
        chunk = config.prefill_chunk_size
        offsets = [s.past for s in rows.states if s.past % chunk] if real.shape[1] > 1 else []
        if offsets:
            raise NotPossible(
                f"a prompt goes on from {offsets[0]} tokens in the cache, and prefill begins at "
                f"multiples of prefill_chunk_size {chunk}; give the whole text without its cache"
            )
        if len(rows) > config.batch_size:
            raise UsageError(
                f"the input has {len(rows)} rows, and the model was compiled for a batch_size of "
                f"{config.batch_size}; compile with a larger rbln_batch_size"
            )
        if len(rows) not in config.decoder_batch_sizes:
            sizes = ", ".join(map(str, config.decoder_batch_sizes))
            raise UsageError(
                f"there is no decoder for a batch of {len(rows)}; there are those of {sizes}: "
                "compile with rbln_decoder_batch_sizes"
            )
        if (np.diff(real.astype(np.int8), axis=1) < 0).any():
            raise UsageError(
                "attention_mask: the ones of a row must be contiguous and at its end, padding on "
                "the left only; make the tokenizer with padding_side='left'"
            )
        lengths = [s.past + int(n) for s, n in zip(rows.states, real.sum(1), strict=True)]
        if max(lengths) > config.max_seq_len:
            raise CapacityError(
                f"{max(lengths)} tokens do not fit the context of {config.max_seq_len}; shorten "
                "the prompt or compile with a larger rbln_max_seq_len"
            )
        needed = sum(-(-length // config.kvcache_block_size) for length in lengths)
        if needed > config.kvcache_num_blocks:
            raise NoBlock(
                f"no free KV block: {needed} are needed and {config.kvcache_num_blocks} were "
                "asked for; use a larger rbln_kvcache_num_blocks or memory_budget"
            )

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Refuse, before any work, an answer that the longest row has no place for."""
        mask = model_kwargs.get("attention_mask")
        padding = 0 if mask is None else int((mask == 0).sum(1).min())
        limit, needed = self.rbln_config.max_seq_len, max_cache_length - padding
        if needed > limit:
            wanted, length = generation_config.max_new_tokens, generation_config.max_length
            of = f"max_length {length}" if wanted is None else f"max_new_tokens {wanted}"
            raise CapacityError(
                f"prompt and answer of up to {needed + 1} tokens ({of}) do not fit the context of "
                f"{limit}, where all but the last need a place: make the prompt or the answer "
                f"shorter by {needed - limit}, or compile with a larger rbln_max_seq_len"
            )
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _validate_generation_mode(self, *args: Any) -> None:
        try:
            super()._validate_generation_mode(*args)
        except Unsupported as error:
            raise NotPossible(str(error)) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r}, {self.rbln_config.npu})"


def _as_rbln(message: str) -> str:
    """What our compiler calls its options, as scripts for the vendor's write them."""
    message = re.sub(r"\b(chiplets|kv)=\w+ \([^)]*\)(; )?", "", message)  # theirs have none
    message = re.sub(r"\bweights=(\w+)", r"rbln_quantization={'weights': '\1'}", message)
    message = re.sub(
        r"\bnum_devices=(\d+)",
        lambda found: f"num_devices={next((n for n in GROUPS if n >= int(found[1])), found[1])}",
        message,
    )
    names = {"prefill_chunk": "prefill_chunk_size", "batch_sizes": "batch_size"}
    return re.sub(
        r"\b(max_seq_len|num_devices|prefill_chunk|batch_sizes)\b",
        lambda found: PREFIX + names.get(found[1], found[1]),
        message,
    )


def _idle(given: dict[str, Any]) -> None:
    """Refuse keywords that nobody knows; say which ones have no effect."""
    for name in (*IDLE, "dtype", "torch_dtype"):
        value = given.pop(name, None)
        if str(value) not in ("None", "False", "cpu", "auto", "torch.bfloat16", "bfloat16"):
            say_once(f"{name} has no effect on a compiled model")
    if given:
        raise UsageError(f"unexpected arguments: {', '.join(given)}; options begin with {PREFIX}")


def _family(name: str, *model_types: str) -> type[RBLNDecoderOnlyModelForCausalLM]:
    config = type(f"{name}Config", (Config,), {"__module__": __name__})
    body = {"model_types": model_types, "config_class": config, "__module__": __name__}
    return type(name, (RBLNDecoderOnlyModelForCausalLM,), body)


RBLNQwen3ForCausalLM = _family("RBLNQwen3ForCausalLM", "qwen3")
RBLNQwen3MoeForCausalLM = _family("RBLNQwen3MoeForCausalLM", "qwen3_moe")
RBLNQwen2ForCausalLM = _family("RBLNQwen2ForCausalLM", "qwen2")
RBLNLlamaForCausalLM = _family("RBLNLlamaForCausalLM", "llama")
RBLNMistralForCausalLM = _family("RBLNMistralForCausalLM", "mistral")
RBLNGemma3ForCausalLM = _family("RBLNGemma3ForCausalLM", "gemma3_text")
RBLNQwen3ForCausalLMConfig = RBLNQwen3ForCausalLM.config_class
RBLNQwen3MoeForCausalLMConfig = RBLNQwen3MoeForCausalLM.config_class
RBLNQwen2ForCausalLMConfig = RBLNQwen2ForCausalLM.config_class
RBLNLlamaForCausalLMConfig = RBLNLlamaForCausalLM.config_class
RBLNMistralForCausalLMConfig = RBLNMistralForCausalLM.config_class
CLASSES = {
    each.__name__: each
    for each in (
        RBLNQwen3ForCausalLM, RBLNQwen3MoeForCausalLM, RBLNQwen2ForCausalLM, RBLNLlamaForCausalLM,
        RBLNMistralForCausalLM, RBLNGemma3ForCausalLM, RBLNDecoderOnlyModelForCausalLM,
    )
}  # fmt: skip
CLASS_OF: dict[str, str] = {
    kind: name for name, each in CLASSES.items() for kind in each.model_types
}


class RBLNAutoModelForCausalLM:
    """Chooses the class by the checkpoint's family, or by what a model was compiled as."""

    @staticmethod
    def from_pretrained(
        model_id: str | Path, export: bool | None = None, *args: Any, **given: Any
    ) -> RBLNDecoderOnlyModelForCausalLM:
        hub = {name: given.pop(name, None) for name in directories.HUB}
        source = directories.locate(model_id, hub)
        if not export and rbln_artefact.is_artefact(Path(source)):
            name = rbln_artefact.class_of(Path(source))
        else:
            name = class_for(source)
        return CLASSES[name].from_pretrained(source, export, *args, **given)

    @staticmethod
    def from_model(model: Any, *args: Any, **given: Any) -> RBLNDecoderOnlyModelForCausalLM:
        kind = model.config.model_type
        if kind not in CLASS_OF:
            raise Unsupported(f"model type '{kind}' has no class here; there are {_classes()}")
        return CLASSES[CLASS_OF[kind]].from_model(model, *args, **given)


def class_for(source: str | Path) -> str:
    """The name of the class that compiles the checkpoint `source`."""
    kind = open_config(source).model_type
    return str(CLASS_OF.get(kind, RBLNDecoderOnlyModelForCausalLM.__name__))


def _classes() -> str:
    return ", ".join(CLASSES)
