"""Maintenance of the data in Redis: upkeep, diagnosis."""
