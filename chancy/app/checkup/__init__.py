"""Checks a database and its workers for what keeps jobs from running, for ``chancy doctor``."""
