"""Mistral: Llama's blocks, each token seeing only the last `spec.window` of them if there is one.

Source: the `MistralForCausalLM` architecture as published with Hugging Face transformers.
"""

from dielet.models.llama import decoder

__all__ = ["decoder"]
