"""Settlements, and what plugins write in their transaction."""
