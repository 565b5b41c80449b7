"""SmolLM3: Llama's blocks, but every fourth layer does not turn its heads (`spec.no_rope`).

Source: the `SmolLM3ForCausalLM` architecture as published with Hugging Face transformers.
"""

from dielet.models.llama import decoder

__all__ = ["decoder"]
