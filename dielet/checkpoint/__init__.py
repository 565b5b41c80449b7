"""Checkpoints: what a model is, where its tensors lie, and how its text becomes tokens."""
