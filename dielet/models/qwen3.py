"""Qwen3: Llama's blocks with q and k normalised per head before the rotation.

Source: the `Qwen3ForCausalLM` architecture as published with Hugging Face transformers.
"""

from dielet.models.llama import decoder

__all__ = ["decoder"]
