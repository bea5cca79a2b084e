"""Checks of a database and of its workers, for ``chancy doctor``."""
