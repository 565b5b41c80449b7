"""Qwen2 and Qwen2.5: Llama's blocks with biases on q, k and v (`spec.biases`).

Source: the `Qwen2ForCausalLM` architecture as published with Hugging Face transformers.
"""

from dielet.models.llama import decoder

__all__ = ["decoder"]
