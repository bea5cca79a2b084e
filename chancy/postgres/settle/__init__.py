"""Settlements, and the writes of plugins in the same transaction."""
