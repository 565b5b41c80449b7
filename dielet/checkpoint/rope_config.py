"""What a config.json says of the rotary embedding, in any of the ways in which it is said."""

from __future__ import annotations

from typing import Any

from dielet.checkpoint.families import FULL, SLIDING, Config
from dielet.errors import DamagedFile, Unsupported

_PARTIAL = ("phi3",)  # families whose heads may turn in part
_STRETCHED = ("llama3", "yarn", "longrope")  # with the length that the model was first trained for


def rope_fields(model_type: str, config: Config, head_dim: int) -> dict[str, Any]:
    """`rope_theta`, `rope_scaling` and `rotary_dim` of a ModelSpec."""
    settings = _settings(model_type, config)
    local = config.get("rope_local_base_freq", float, 0.0) if model_type == "gemma3_text" else 0.0
    if SLIDING in settings or FULL in settings:  # a kind of layer each
        nested = config.within("rope_parameters", settings)
        sliding = config.within(SLIDING, nested.get(SLIDING, dict, {}))
        if sliding.get("rope_type", str, "default") != "default" or model_type != "gemma3_text":
            raise Unsupported(
                f"{config.where}: rope_parameters of {SLIDING} must be the default kind, in "
                "gemma3_text alone"
            )
        local = sliding.get("rope_theta", float, local)
        settings = nested.get(FULL, dict, {})
    if model_type == "gemma3_text" and not local:
        raise DamagedFile(f"{config.where}: rope_theta of {SLIDING} is 0; it must be above 1")
    where = config.within("rope_parameters", settings)
    theta = where.get("rope_theta", float, config.get("rope_theta", float, 10000.0))
    share = where.get("partial_rotary_factor", float, None)
    if share is None:
        share = config.get("partial_rotary_factor", float, 1.0)
    if not 0 < share <= 1:
        raise DamagedFile(
            f"{config.where}: partial_rotary_factor is {share}; it is above 0, up to 1"
        )
    if share != 1 and model_type not in _PARTIAL:
        raise Unsupported(
            f"{config.where}: partial_rotary_factor is {share}, which {model_type} does not have"
        )
    turned = int(head_dim * share)
    if turned < 2 or turned % 2:
        raise Unsupported(
            f"{config.where}: partial_rotary_factor {share} turns {turned} of {head_dim} elements "
            "of a head; an even number is needed"
        )
    return {
        "local_rope_theta": local,
        "rope_theta": theta,
        "rope_scaling": _scaling(model_type, config, where),
        "rotary_dim": 0 if turned == head_dim else turned,
    }


def _settings(model_type: str, config: Config) -> dict[str, Any]:
    """`rope_parameters`, of newer files, or `rope_scaling`, of older ones.

    Where both say something the older takes the newer's place, base and all, as in transformers;
    Gemma 3's is of the full layers alone.
    """
    new: dict[str, Any] = config.get("rope_parameters", dict, {})
    old: dict[str, Any] = config.get("rope_scaling", dict, {})
    if model_type != "gemma3_text" or not new:
        return old or new
    if not old:
        return new
    if FULL not in new:
        raise DamagedFile(
            f"{config.where}: rope_scaling stands beside rope_parameters without {FULL}; "
            "leave one of them out"
        )
    full = config.within("rope_parameters", new).get(FULL, dict, {})
    return {**new, FULL: {**full, **old}}


def _scaling(model_type: str, config: Config, where: Config) -> dict[str, Any] | None:
    kind = where.get("rope_type", str, None) or where.get("type", str, "default")
    if model_type == "phi3" and kind in ("su", "yarn"):  # as the first of them called it
        kind = "longrope"
    if kind == "default":
        return None
    left_out = ("type", "rope_theta", "partial_rotary_factor")
    scaling = {k: v for k, v in where.values.items() if k not in left_out and v is not None}
    scaling["rope_type"] = kind
    longest = config.get("max_position_embeddings", int)
    if kind == "dynamic":
        scaling["max_position_embeddings"] = longest  # whatever stands here, as in transformers
    if kind in _STRETCHED:
        original = "original_max_position_embeddings"
        scaling[original] = config.get(original, int, scaling.get(original, longest))
        if kind != "llama3" and isinstance(scaling[original], int) and scaling[original] > 0:
            scaling.setdefault("factor", longest / scaling[original])
    return scaling
