"""Checks a database and its workers for problems that keep jobs from running, for ``chancy doctor``."""
