"""How many KV blocks a device has room for, and budgets of memory as the vendor writes them."""

from __future__ import annotations

from pathlib import Path

from dielet.compat.rbln_checks import parse_budget
from dielet.compat.rbln_options import RBLNDecoderOnlyModelForCausalLMConfig
from dielet.devices.units import SIZE, show
from dielet.errors import CapacityError, UsageError
from dielet.image import CompileOptions, open_source
from dielet.image.capacity import fullest, memory_by_chiplet
from dielet.image.plan import Planner
from dielet.simulator.model import open_source as open_compiled


def settle_blocks(
    source: str | Path, options: CompileOptions, config: RBLNDecoderOnlyModelForCausalLMConfig
) -> None:
    """Set kvcache_num_blocks where it is automatic: as many as fit, up to a full cache.

    Raises CapacityError when not even one sequence fits the budget.
    """
    if _is_unlimited(config):
        return
    checkpoint = open_source(source, options)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    _settle(Planner(checkpoint.spec, tensors, options), config)


def settle_compiled(directory: Path, config: RBLNDecoderOnlyModelForCausalLMConfig) -> None:
    """The same for a model that is compiled."""
    if _is_unlimited(config):
        return
    wanted = config.compile_options()
    options = CompileOptions(device=wanted.device, num_devices=wanted.num_devices)
    found = open_compiled(directory, options)
    _settle(Planner(found.spec, found.tensors, found.options, int8=found.int8), config)


def _most(config: RBLNDecoderOnlyModelForCausalLMConfig) -> int:
    """Blocks of a full cache for all sequences."""
    return config.max_seq_len // config.kvcache_block_size * config.batch_size


def _is_unlimited(config: RBLNDecoderOnlyModelForCausalLMConfig) -> bool:
    """Whether no budget limits the blocks: then there are as many as asked for, or all."""
    if config.memory_budget is None:
        config.fill(kvcache_num_blocks=config.kvcache_num_blocks or _most(config))
    return config.memory_budget is None


def _settle(planner: Planner, config: RBLNDecoderOnlyModelForCausalLMConfig) -> None:
    most = _most(config)
    full = config.attn_impl == "eager"  # then every sequence has all of its cache
    least = most if full else config.max_seq_len // config.kvcache_block_size
    owners = memory_by_chiplet(planner)[fullest(planner)] if planner.device.local_memory else {}
    if not owners:
        raise UsageError(f"memory_budget: {planner.device.name} has no memory of its own")
    limit = parse_budget(config.memory_budget, planner.device.memory["dram"].size)
    cache = next(size for owner, size in owners.items() if owner.startswith("kv "))
    block = cache // (planner.kv.positions * max(planner.batch_sizes) // config.kvcache_block_size)
    fixed = sum(owners.values()) - cache
    blocks = min(most, (limit - fixed) // max(block, 1))
    if blocks < least:
        raise CapacityError(
            f"memory_budget {config.memory_budget!r} is {show(limit, SIZE)} of a chiplet's DRAM; "
            f"weights and tables need {show(fixed, SIZE)} and {least} KV blocks "
            f"{show(least * block, SIZE)}: give more, a smaller max_seq_len or batch_size, or more "
            "devices"
        )
    config.fill(kvcache_num_blocks=blocks)
