"""Pushes: one at a time, many at once, and within the caller's transaction."""
