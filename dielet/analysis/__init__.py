"""The analysis: what a trace says about where the time went, and what to do about it."""
