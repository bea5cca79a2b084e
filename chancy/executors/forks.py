"""Copies of this process that jobs make by forking.

A copy that returns from its job would go on as a second worker, over the same connections. Who
runs a job therefore compares the generation before it and after it, which costs a few nanoseconds
where asking for the process id costs 160, and ends the copy.
"""

from __future__ import annotations

import os

#: How many forks lie between the first process and this one.
generation = 0


def _count() -> None:
    global generation
    generation += 1


def end_copy() -> None:
    """End a copy of the process that a job has left behind in our code."""
    os._exit(0)


os.register_at_fork(after_in_child=_count)
