"""Every option of optimum-rbln's decoder-only models: its default, its rule, what it means here.

Names, defaults and rules are those of the published optimum-rbln 0.12.0.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from dielet.compat.rbln_checks import (
    check_devices,
    check_kinds,
    dtype_name,
    group,
    positive,
)
from dielet.compat.rbln_errors import NotPossible
from dielet.compat.rbln_npu import CHUNK_STEP, DEFAULT, Family, device_of, family_of
from dielet.compat.rbln_windows import Windows, window_options
from dielet.compat.said import say_once
from dielet.errors import UsageError
from dielet.image import CompileOptions
from dielet.image.options import MAX_BATCH, MAX_CHUNK

PREFIX = "rbln_"


class Runtime:
    """Options of a runtime: they may differ from load to load, and are not saved."""

    create_runtimes: Any = None
    device: Any = None
    device_map: Any = None
    activate_profiler: Any = None
    timeout: Any = None


class Compilation:
    """Options of a compilation: saved, and the same whenever the model is loaded."""

    npu: Any = None
    num_devices: Any = None
    dtype: Any = None
    batch_size: Any = 1
    max_seq_len: Any = None
    use_inputs_embeds: Any = False
    use_attention_mask: Any = False
    use_position_ids: Any = False
    attn_impl: Any = None
    kvcache_partition_len: Any = None
    kvcache_block_size: Any = None
    kvcache_num_blocks: Any = 0
    prefill_chunk_size: Any = None
    decoder_batch_sizes: Any = None
    cache_impl: Any = "static"
    sliding_window: Any = None
    sliding_window_layers: Any = None
    phases: Any = None
    logits_to_keep: Any = None
    output_hidden_states: Any = None
    quantization: Any = None
    lora_config: Any = None


class Unsaved:
    """Options of a compilation that are not saved."""

    memory_budget: Any = None
    optimize_host_memory: Any = None


RUNTIME, COMPILE, UNSAVED = (
    {name: getattr(options, name) for name in options.__annotations__}
    for options in (Runtime, Compilation, Unsaved)
)
OPTIONS = RUNTIME | COMPILE | UNSAVED
ALIASES = {"tensor_parallel_size": "num_devices"}
QUANTIZATION = {
    "format": ("rbln",),
    "weights": ("int4", "int8", "fp8", "fp16"),
    "activations": ("int8", "fp8", "fp16"),
    "kv_caches": ("fp8", "fp16"),
    "dynamic": (True, False),
}


class RBLNDecoderOnlyModelForCausalLMConfig(Runtime, Compilation, Unsaved):
    """The options of one model, as attributes; None where nothing was said.

    given: names of those that were said, by keyword or by setting the attribute.
    `settle` fills in what depends on the model and checks all of it.
    """

    given: set[str]

    def __init__(self, **options: Any) -> None:
        self.fill(given=set())
        self.update(options)

    def __setattr__(self, name: str, value: Any) -> None:
        """`config.batch_size = 2` says what the keyword does."""
        self.update({name: value})

    @property
    def tensor_parallel_size(self) -> Any:
        """What num_devices was called."""
        return self.num_devices

    def fill(self, **values: Any) -> None:
        """Set options that nobody said."""
        vars(self).update(values)

    def update(self, options: Mapping[str, Any]) -> None:
        """Set options; names with or without `rbln_`.  UsageError for one that does not exist."""
        for name, value in options.items():
            short = name.removeprefix(PREFIX)
            if short in ALIASES:
                say_once(f"rbln_{short} is now called rbln_{ALIASES[short]}")
                _check_alias(short, value, options)
                short = ALIASES[short]
            if short not in OPTIONS:
                near = difflib.get_close_matches(short, OPTIONS, 1)
                hint = f"did you mean {near[0]}?" if near else f"options: {', '.join(OPTIONS)}"
                raise UsageError(f"unexpected arguments: {name}; {hint}")
            self.fill(**{short: dtype_name(value) if short == "dtype" else value})
            self.given.add(short)

    def compile_values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COMPILE}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in sorted(self.given))
        return f"{type(self).__name__}({shown})"

    def settle(self, max_position: int, windows: Windows | None = None) -> None:
        """Fill in defaults, and check every option; UsageError names what is allowed.

        max_position, windows: of the model.
        """
        self.fill(npu=self.npu or DEFAULT)
        check_kinds(self)
        family = family_of(self.npu)
        self.fill(
            num_devices=group(1 if self.num_devices is None else self.num_devices),
            batch_size=positive("batch_size", 1 if self.batch_size is None else self.batch_size),
            max_seq_len=positive(
                "max_seq_len", max_position if self.max_seq_len is None else self.max_seq_len
            ),
        )
        self._settle_batches()
        self._settle_attention(family)
        self._settle_chunk(family)
        self.fill(**window_options(self, family, windows or Windows()))
        self._settle_outputs()
        self.fill(quantization=checked_quantization(self.quantization or {}))
        self._settle_runtime()

    def _settle_batches(self) -> None:
        if self.batch_size > MAX_BATCH:
            raise UsageError(
                f"batch_size is {self.batch_size}; programs are made for at most {MAX_BATCH}"
            )
        sizes = [self.batch_size] if self.decoder_batch_sizes is None else self.decoder_batch_sizes
        if not isinstance(sizes, list | tuple) or not sizes:
            raise UsageError(f"decoder_batch_sizes is {sizes!r}; give a list of batch sizes")
        for size in sizes:
            if positive("decoder_batch_sizes", size) > self.batch_size:
                raise UsageError(
                    f"decoder_batch_sizes {list(sizes)}: each is at most batch_size "
                    f"{self.batch_size}"
                )
        if len(sizes) > 1:
            sizes = sorted({*sizes, self.batch_size}, reverse=True)
        self.fill(decoder_batch_sizes=list(sizes))

    def _settle_attention(self, family: Family) -> None:
        if self.attn_impl not in (None, "eager", "flash_attn"):
            raise UsageError(f"attn_impl is {self.attn_impl!r}; use eager or flash_attn")
        if self.use_position_ids and not self.use_attention_mask:
            raise UsageError("use_position_ids needs use_attention_mask=True as well")
        if self.kvcache_partition_len is not None and self.attn_impl == "eager":
            raise UsageError("kvcache_partition_len goes with attn_impl flash_attn, not eager")
        if self.kvcache_num_blocks and self.memory_budget is not None:
            raise UsageError("memory_budget and kvcache_num_blocks exclude each other; give one")
        if self.attn_impl is None:
            self.fill(attn_impl="eager" if self.kvcache_partition_len is None else "flash_attn")
            if self.attn_impl == "flash_attn":
                say_once("attn_impl is flash_attn, since kvcache_partition_len is given")
        if self.attn_impl == "eager":
            self._settle_eager(family)
        else:
            self._settle_flash(family)

    def _settle_eager(self, family: Family) -> None:
        if self.max_seq_len > family.eager:
            raise UsageError(
                f"max_seq_len is {self.max_seq_len}; with attn_impl eager {family.name} takes at "
                f"most {family.eager}: give a smaller rbln_max_seq_len, or attn_impl flash_attn"
            )
        self._settle_blocks(self.max_seq_len, "max_seq_len", self.batch_size)
        self.fill(kvcache_num_blocks=self.batch_size)

    def _settle_flash(self, family: Family) -> None:
        part = self.kvcache_partition_len or family.partition_default
        low, high = family.partition
        if not low <= part <= high:
            raise UsageError(
                f"kvcache_partition_len is {part}; on {family.name} it is from {low} to {high}"
            )
        if self.max_seq_len % part or self.max_seq_len < 2 * part:
            raise UsageError(
                f"max_seq_len is {self.max_seq_len}; with flash_attn on {family.name} it is a "
                f"multiple of the partition length {part}, and at least {2 * part}"
            )
        self.fill(kvcache_partition_len=part)
        per_row = self.max_seq_len // part
        self._settle_blocks(part, "kvcache_partition_len", per_row * self.batch_size)
        if self.kvcache_num_blocks and self.kvcache_num_blocks < per_row:
            raise UsageError(
                f"kvcache_num_blocks is {self.kvcache_num_blocks}; one sequence of max_seq_len "
                f"{self.max_seq_len} alone needs {per_row}"
            )

    def _settle_blocks(self, size: int, of: str, most: int) -> None:
        if self.kvcache_block_size not in (None, size):
            raise UsageError(
                f"kvcache_block_size is {self.kvcache_block_size}; it must equal {of}, {size}"
            )
        self.fill(kvcache_block_size=size)
        blocks = self.kvcache_num_blocks
        if type(blocks) is not int or not 0 <= blocks <= most:
            raise UsageError(
                f"kvcache_num_blocks is {blocks!r}; it is from 0 (automatic) to {most}"
            )

    def _settle_chunk(self, family: Family) -> None:
        chunk = family.chunk if self.prefill_chunk_size is None else self.prefill_chunk_size
        if type(chunk) is not int or chunk < CHUNK_STEP or chunk % CHUNK_STEP:
            raise UsageError(f"prefill_chunk_size is {chunk!r}; on {family.name} it is a positive "
                             f"multiple of {CHUNK_STEP}")  # fmt: skip
        if chunk > MAX_CHUNK:
            raise UsageError(
                f"prefill_chunk_size is {chunk}; programs are made for at most {MAX_CHUNK} tokens"
            )
        self.fill(prefill_chunk_size=chunk)

    def _settle_outputs(self) -> None:
        self.fill(
            phases=self.phases or ["prefill", "decode"],
            logits_to_keep=1 if self.logits_to_keep is None else self.logits_to_keep,
        )
        if list(self.phases) != ["prefill", "decode"]:
            raise UsageError(f"phases is {self.phases!r}; a causal LM has ['prefill', 'decode']")
        if self.logits_to_keep != 1:
            raise NotPossible(f"logits_to_keep is {self.logits_to_keep}; compiled programs give 1")
        for name in ("output_hidden_states", "use_inputs_embeds", "lora_config"):
            if getattr(self, name):
                raise NotPossible(f"{name} is not possible: programs take tokens, and give logits")

    def _settle_runtime(self) -> None:
        for name in ("timeout", "optimize_host_memory", "use_attention_mask", "use_position_ids"):
            if getattr(self, name):
                say_once(f"rbln_{name} has no effect here")
        if self.create_runtimes is False:  # then nothing goes to a device
            return
        check_devices("device", self.device, self.num_devices)
        names = model_names(self)
        for name, devices in (self.device_map or {}).items():
            if name not in names:
                raise UsageError(f"device_map names {name!r}; there are {', '.join(names)}")
            check_devices(f"device_map[{name!r}]", devices, self.num_devices)

    def compile_options(self, layers: int | None = None) -> CompileOptions:
        """What these options ask of our compiler."""
        weights = self.quantization.get("weights")
        return CompileOptions(
            device=device_of(self.npu, self.num_devices),
            num_devices=self.num_devices if self.num_devices > 1 else None,
            weights=weights if weights in ("int4", "int8") else "bf16",
            max_seq_len=self.max_seq_len,
            prefill_chunk=self.prefill_chunk_size,
            batch_sizes=tuple(sorted({1, *self.decoder_batch_sizes})),
            layers=layers,
        )


def _check_alias(old: str, value: Any, options: Mapping[str, Any]) -> None:
    """UsageError when an option has another value under its new name."""
    new = ALIASES[old]
    for name in (new, PREFIX + new):
        if options.get(name, value) != value:
            raise UsageError(
                f"rbln_{new} is {options[name]!r} and rbln_{old}, its old name, is {value!r}; give "
                f"rbln_{new} alone"
            )


def model_names(config: RBLNDecoderOnlyModelForCausalLMConfig) -> list[str]:
    """What the vendor compiles separately: prefill, and a decoder per batch size."""
    return ["prefill", *(f"decoder_batch_{size}" for size in config.decoder_batch_sizes)]


def checked_quantization(given: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        allowed = QUANTIZATION.get(name)
        if allowed is None:
            raise UsageError(f"quantization has {name!r}; it takes {', '.join(QUANTIZATION)}")
        if value not in allowed:
            shown = ", ".join(map(str, allowed))
            raise UsageError(f"quantization: {name} is {value!r}; use one of {shown}")
    if given.get("weights") == given.get("activations") == "fp16":
        raise UsageError("quantization: weights and activations both fp16 quantise nothing")
    for name in ("weights", "activations", "kv_caches"):
        if given.get(name) == "fp8":
            raise NotPossible(f"quantization: {name} fp8 is not computed here; use int8 or int4")
    return dict(given)
