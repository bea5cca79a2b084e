"""Keeping the data in Redis in order: sweeps, repair, diagnosis."""
