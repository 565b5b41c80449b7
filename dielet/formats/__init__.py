"""Number formats of weights: how values become bytes, and back.  Depends on nothing else here."""
