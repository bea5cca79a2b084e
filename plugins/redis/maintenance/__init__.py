"""Maintenance of the data in Redis: upkeep, repair, diagnosis."""
