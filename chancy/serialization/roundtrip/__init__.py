"""Whether a value survives JSON."""
