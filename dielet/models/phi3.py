"""Phi-3: Llama's blocks; files hold q, k and v as one tensor, gate and up as another
(`checkpoint/stored.py`), and a part of each head may turn.

Source: the `Phi3ForCausalLM` architecture as published with Hugging Face transformers.
"""

from dielet.models.llama import decoder

__all__ = ["decoder"]
