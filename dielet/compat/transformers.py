"""`DieletForCausalLM`: a compiled model behind the interface of Hugging Face transformers.

    from dielet.compat.transformers import DieletForCausalLM
    model = DieletForCausalLM.from_pretrained("Qwen/Qwen3-1.7B", weights="int8")
    model.generate(**tokenizer("hello", return_tensors="pt"), max_new_tokens=20)

`generate` is transformers' own; here is only what it asks of a model: scores after tokens.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from dielet.compat.needs import require

require()

import torch  # noqa: E402
from transformers import AutoConfig, GenerationConfig  # noqa: E402
from transformers.generation import GenerationMixin, GenerationMode  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from transformers.utils import ModelOutput  # noqa: E402

from dielet.checkpoint.config import config_json  # noqa: E402
from dielet.compat import directories  # noqa: E402
from dielet.compat.changes import Changes  # noqa: E402
from dielet.compat.masks import check_mask, check_positions, placed, positions_of  # noqa: E402
from dielet.compat.rows import Rows, Tokens  # noqa: E402
from dielet.compat.said import say_once  # noqa: E402
from dielet.compat.threads import alone  # noqa: E402
from dielet.errors import MissingFile, Unsupported, UsageError  # noqa: E402
from dielet.generate.answer import Gate  # noqa: E402
from dielet.generate.session import is_model_directory  # noqa: E402
from dielet.generate.text import GENERATION_CONFIG  # noqa: E402
from dielet.host import load_runtime  # noqa: E402
from dielet.host.runtime import Runtime  # noqa: E402
from dielet.image import CompileOptions, read_manifest  # noqa: E402
from dielet.image.names import MODEL_CONFIG  # noqa: E402

OPTIONS = tuple(field.name for field in fields(CompileOptions))
# Arguments of transformers' from_pretrained about things that are decided elsewhere here.
IDLE = (
    "device_map", "attn_implementation", "low_cpu_mem_usage", "use_safetensors", "max_memory",
    "trust_remote_code", "tp_plan", "offload_folder", "use_cache", "local_rank",
)  # fmt: skip
# Newer transformers call the argument `cache`.
CACHE = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
# Arguments of `generate` that it uses itself, and what would have to change from step to step.
NOT_FORWARDED = ("tokenizer", "assistant_tokenizer", "position_ids", "cache_position")
# Ways to generate that newer transformers would fetch from elsewhere.
MOVED = (
    "contrastive_search", "dola_generation", "constrained_beam_search", "group_beam_search",
)  # fmt: skip
MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


@dataclass
class Output(ModelOutput):
    """logits: f32 [rows, columns kept, vocab], zeros where a column is padding."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    cache: Rows | None = None
    hidden_states: None = None
    attentions: None = None

    @property
    def past_key_values(self) -> Rows | None:
        return self.cache


class DieletForCausalLM(GenerationMixin):
    """A compiled model that transformers can generate with, in `pipeline` too.

    Rows of a batch are decoded together when the model was compiled for it (`batch_sizes`).
    Close it, or use it as a context manager, to free its memory.
    """

    main_input_name = "input_ids"
    base_model_prefix = "model"
    input_modalities = ("text",)
    output_modalities = ("text",)
    _is_stateful = False
    _ends_at_capacity = True  # an answer is cut where the context ends, and that is said
    _logits_kept = 0  # columns that a call gives scores of, unless it says; 0 for all

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _make_known(cls.__name__)

    def __init__(self, runtime: Runtime | None, directory: Path) -> None:
        self.directory = directory
        self.config = _config(directory)
        self.generation_config = (
            GenerationConfig.from_pretrained(directory)
            if (directory / GENERATION_CONFIG).is_file()
            else GenerationConfig.from_model_config(self.config)
        )
        self._runtime = runtime
        self._gate = Gate()

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        export: bool | None = None,
        *,
        threads: int | None = None,
        profiler: bool | None = None,
        out: str | Path | None = None,
        **options: Any,
    ) -> DieletForCausalLM:
        """Load a model directory, or compile a checkpoint (directory, hub id, .gguf) and load it.

        export: compile (True), never compile (False), or when it is not compiled yet (None).
        options: those of `dielet.compile`; and of transformers' from_pretrained those that say
        where on the hub the model is.  out: the directory to compile into, if not the cache.
        """
        hub = {name: options.pop(name, None) for name in directories.HUB}
        source = directories.locate(model_id, hub)
        changes = Changes.taken(options, source)
        if changes.layers is not None:
            options.setdefault("layers", changes.layers)
        given = _compile_options(options)
        if export is None:
            export = not is_model_directory(Path(source))
        directory = Path(source)
        if export:
            directory = directories.compiled(source, given, out)
        elif given != CompileOptions() or out is not None:
            raise UsageError(
                f"{source} is loaded as it was compiled, so compile options mean nothing; "
                "leave them out, or compile from the checkpoint with export=True"
            )
        else:
            _check_compiled(directory)
            directories.take_over_texts(directory)
        runtime = load_runtime(directory, threads=threads, profiler=profiler)
        return changes.applied(cls(runtime, directory))

    def save_pretrained(
        self, save_directory: str | Path, push_to_hub: bool = False, **ignored: Any
    ) -> None:
        """Copy the model directory, with the generation settings as they are now."""
        directories.refuse_push(push_to_hub)
        settings = self.generation_config.to_json_string(use_diff=True).encode()
        directories.save(self.directory, save_directory, {GENERATION_CONFIG: settings})

    def push_to_hub(self, *args: Any, **kwargs: Any) -> None:
        directories.refuse_push(True)

    @wraps(GenerationMixin.generate)
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        ids = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs"))
        if isinstance(ids, torch.Tensor) and ids.ndim == 2:
            if mask is not None:
                # One of ones alone, whatever its shape, is dropped by transformers.
                check_mask(mask, ids, kwargs.get("cache", kwargs.get("past_key_values")))
            positions = kwargs.pop("position_ids", None)
            if positions is not None:
                kwargs["position_ids"] = positions_of("position_ids", positions, *ids.shape)
        with alone():
            return super().generate(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        cache: Rows | None = None,
        past_key_values: Rows | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        position_ids: torch.Tensor | None = None,
        cache_position: torch.Tensor | None = None,
    ) -> Output:
        """Scores after the last `logits_to_keep` columns of int64 [rows, columns], 0 for all.

        attention_mask: 0 where a column of a row is padding; of the new columns, or of those in
        the cache too.  Padding is left out: it takes no place in the cache.
        position_ids, cache_position: must be those that follow from it.
        """
        if output_attentions or output_hidden_states:
            what = "output_attentions" if output_attentions else "output_hidden_states"
            raise Unsupported(f"{what} is not possible: compiled programs give logits alone")
        if logits_to_keep is None:
            logits_to_keep = self._logits_kept if labels is None else 0
        if not isinstance(logits_to_keep, int):
            raise UsageError(f"logits_to_keep is {type(logits_to_keep).__name__}; give a number")
        rows = cache if cache is not None else past_key_values
        ids, real = self._checked(input_ids, attention_mask, rows)
        keep = min(logits_to_keep, ids.shape[1]) or ids.shape[1]
        if logits_to_keep and not real[:, -1].all():
            raise UsageError(
                f"row {int(np.argmin(real[:, -1]))} of the batch ends in padding; padding goes "
                "before the text: make the tokenizer with padding_side='left'"
            )
        if rows is None:
            rows = Rows(self.runtime, self._gate, len(ids))
        elif not isinstance(rows, Rows):
            raise UsageError(
                f"cache is a {type(rows).__name__}; only one that this model gave fits"
            )
        elif len(rows) != len(ids):
            raise UsageError(f"the cache is of {len(rows)} rows and the input has {len(ids)}")
        self._check_compiled_for(real, rows)
        pasts = [state.past for state in rows.states]
        check_positions("position_ids", position_ids, real, pasts)
        check_positions("cache_position", cache_position, real, pasts, rows.columns)
        found = rows.feed([row[here] for row, here in zip(ids, real, strict=True)], keep)
        rows.columns += ids.shape[1]
        logits = torch.from_numpy(placed(found, real[:, -keep:]))
        loss = None
        if labels is not None:
            loss = ForCausalLMLoss(logits, labels, self.runtime.spec.vocab)
        return Output(loss, logits, rows if use_cache is not False else None)

    __call__ = forward

    @property
    def runtime(self) -> Runtime:
        """What executes the programs.  Not thread-safe by itself."""
        assert self._runtime is not None
        return self._runtime

    @property
    def max_seq_len(self) -> int:
        """Tokens that prompt and answer of a row may have together."""
        return self.runtime.max_seq_len

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Of the scores."""
        return torch.float32

    def to(self, *args: Any, **kwargs: Any) -> DieletForCausalLM:
        """Nothing moves: tensors go in and out on the CPU."""
        wanted = [*args, *kwargs.values()]
        if any(not isinstance(w, torch.dtype) and torch.device(w).type != "cpu" for w in wanted):
            raise UsageError(f"device {wanted[0]}: a compiled model takes and gives CPU tensors")
        return self

    def eval(self) -> DieletForCausalLM:
        return self

    def cpu(self) -> DieletForCausalLM:
        return self

    def float(self) -> DieletForCausalLM:
        """The scores are float32 already."""
        return self

    def half(self) -> DieletForCausalLM:
        raise Unsupported(_STORED.format("half"))

    def bfloat16(self) -> DieletForCausalLM:
        raise Unsupported(_STORED.format("bfloat16"))

    def cuda(self, *args: Any, **kwargs: Any) -> DieletForCausalLM:
        return self.to("cuda")

    def train(self, mode: bool = True) -> DieletForCausalLM:
        if mode:
            raise Unsupported("train() is not possible: a compiled model has no gradients")
        return self

    @property
    def training(self) -> bool:
        return False

    @property
    def name_or_path(self) -> str:
        return str(self.directory)

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Weights of the model, a tied head counted once; none of them is trainable."""
        if only_trainable:
            return 0
        spec = read_manifest(self.directory).spec
        return spec.parameters - (spec.vocab * spec.hidden if exclude_embeddings else 0)

    def close(self) -> None:
        """Free the model's memory once the running program has ended."""
        if self._gate.close() and self._runtime is not None:
            self._runtime.close()

    def __enter__(self) -> DieletForCausalLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    def _checked(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, rows: object
    ) -> tuple[Tokens, np.ndarray]:
        """Tokens int32 [rows, columns], and which of them are real; rows: their cache, if any."""
        if input_ids is None or input_ids.ndim != 2 or not input_ids.shape[1]:
            shape = None if input_ids is None else tuple(input_ids.shape)
            raise UsageError(f"input_ids is {shape}; rows and columns of token ids are needed")
        if input_ids.is_floating_point() or input_ids.is_complex() or input_ids.dtype == torch.bool:
            raise UsageError(f"input_ids is {input_ids.dtype}; token ids are whole numbers")
        ids = input_ids.detach().cpu().numpy()
        if attention_mask is None:
            real = np.ones(ids.shape, bool)
        else:
            check_mask(attention_mask, input_ids, rows)
            real = (attention_mask[:, -ids.shape[1] :] != 0).cpu().numpy()
        used = ids[real]
        vocab = self.runtime.spec.vocab
        if used.size and not 0 <= used.min() <= used.max() < vocab:
            raise UsageError(
                f"token ids {used.min()} ... {used.max()} are not all in the model's vocabulary "
                f"of {vocab}; were they made with another tokenizer?"
            )
        return ids.astype(np.int32), real

    def _check_compiled_for(self, real: np.ndarray, rows: Rows) -> None:
        """Refuse what was not compiled; real: bool [rows, new columns], where there are tokens."""

    # What GenerationMixin asks of a model beside its scores.

    def can_generate(self) -> bool:
        return True

    def is_remote_code(self) -> bool:
        return False

    def get_experts_implementation(self) -> dict[str, str | None]:
        return {}

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        cache: Rows | None = None,
        past_key_values: Rows | None = None,
        attention_mask: torch.Tensor | None = None,
        is_first_iteration: bool | None = False,
        **inputs: Any,
    ) -> dict[str, Any]:
        if next_sequence_length is not None:
            input_ids = input_ids[:, -next_sequence_length:]
        rows = cache if cache is not None else past_key_values
        known = {"input_ids": input_ids, "attention_mask": attention_mask, "cache": rows}
        positions = inputs.get("position_ids")
        if is_first_iteration and positions is not None:
            known["position_ids"] = positions[:, -input_ids.shape[1] :]
        return known | {
            name: value
            for name, value in inputs.items()
            if value is not None and name not in NOT_FORWARDED
        }

    def _prepare_position_ids_for_generation(self, *args: Any) -> None:
        """None: only positions that the caller gave are held against those of the text."""

    def _update_model_kwargs_for_generation(
        self, outputs: Output, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        if outputs.cache is not None:
            model_kwargs[CACHE] = outputs.cache
        mask = model_kwargs.get("attention_mask")
        if mask is not None:
            new = mask.new_ones((mask.shape[0], kwargs.get("num_new_tokens", 1)))
            model_kwargs["attention_mask"] = torch.cat([mask, new], dim=-1)
        return model_kwargs

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        self._end_with_context(generation_config, model_kwargs.get("attention_mask"))
        given = model_kwargs.get(CACHE)
        if given is not None and not isinstance(given, Rows):
            raise UsageError(
                f"cache is a {type(given).__name__}; only one that this model gave fits"
            )
        if given is None and generation_config.use_cache is not False:
            count = batch_size * (generation_config.num_return_sequences or 1)
            model_kwargs[CACHE] = Rows(self.runtime, self._gate, count)

    def _end_with_context(self, config: GenerationConfig, mask: torch.Tensor | None) -> None:
        """Let the answer end, at the latest, where the longest row has no place any more."""
        if not self._ends_at_capacity:
            return
        padding = 0 if mask is None else int((mask == 0).sum(1).min())
        # The last token chosen needs no place in the cache.
        limit = self.max_seq_len + padding + 1
        if config.max_length > limit:
            say_once(
                f"the answer ends at the latest with the context of {self.max_seq_len} tokens "
                f"(max_length is {config.max_length}); compile with a larger max_seq_len"
            )
            config.max_length = limit

    def _get_deprecated_gen_repo(self, generation_mode: GenerationMode, *args: Any) -> str | None:
        """Refuse the modes that newer transformers would fetch from elsewhere, as the others."""
        if generation_mode.value in MOVED:
            raise _impossible(generation_mode)
        return None

    def _validate_generation_mode(
        self, generation_mode: GenerationMode, generation_config: GenerationConfig, *args: Any
    ) -> None:
        if generation_mode in MODES:
            return
        beams = "beam" in generation_mode.value
        raise _impossible(
            generation_mode, f" (num_beams={generation_config.num_beams})" if beams else ""
        )

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported("generate_batch (continuous batching) is not possible; use generate")


def _impossible(mode: GenerationMode, how: str = "") -> Unsupported:
    return Unsupported(
        f"{mode.value.replace('_', ' ')}{how} is not possible with a compiled model, whose KV "
        "caches are not reordered; use greedy search or do_sample=True, with "
        "num_return_sequences for several answers"
    )


_STORED = "{}() is not possible: weights stay as compiled; compile with weights=bf16|int8|int4"


def _config(directory: Path) -> Any:
    """The model's configuration; of a family that has a role map, that of the one it is like."""
    try:
        return AutoConfig.from_pretrained(directory)
    except ValueError:  # transformers knows no such model type
        spec = read_manifest(directory).spec
        return AutoConfig.for_model(**json.loads(config_json(spec)))


def _compile_options(options: Mapping[str, Any]) -> CompileOptions:
    """Compile options out of `from_pretrained`'s keywords; what has no effect is said once."""
    given = dict(options)
    dtype = given.pop("dtype", given.pop("torch_dtype", None))
    if str(dtype) not in ("None", "auto", "torch.bfloat16", "bfloat16"):
        say_once(f"dtype {dtype} has no effect: weights are stored as weights=bf16|int8|int4 says")
    for name in IDLE:
        value = given.pop(name, None)
        if value not in (None, False, "cpu", "auto"):
            say_once(f"{name} has no effect on a compiled model")
    return CompileOptions.of(**{name: value for name, value in given.items() if value is not None})


def _check_compiled(directory: Path) -> None:
    if not is_model_directory(directory):
        raise MissingFile(
            f"{directory} is no compiled model; leave export=False out to compile it, or save one "
            "there with save_pretrained"
        )
    if not (directory / MODEL_CONFIG).is_file():
        raise Unsupported(f"{directory} has no {MODEL_CONFIG}, which transformers needs")


def _make_known(name: str) -> None:
    """Let `pipeline` not complain of a class that it has never heard of."""
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name] = name


_make_known(DieletForCausalLM.__name__)
