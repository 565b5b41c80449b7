"""Run compiled programs on this machine with generated native code."""

from dielet.host.runtime import Logits, Runtime, State, load_runtime

__all__ = ["Logits", "Runtime", "State", "load_runtime"]
