"""The call shapes of pytask 0.1: a program of it runs with its imports changed, on Python 3.

What is here names things and nothing else; `chancy.plugins.redis.services` does the work. The keys
are those of pytask too, and beside them some that it did not have.
"""

from __future__ import annotations

from chancy.plugins.redis.compat.pytask.application import PyTask
from chancy.plugins.redis.compat.pytask.calls import PyTaskHelpers
from chancy.plugins.redis.compat.pytask.task import Task, run_loop
from chancy.plugins.redis.compat.pytask.tasks import Cleanup, Monitor

__all__ = ["Cleanup", "Monitor", "PyTask", "PyTaskHelpers", "Task", "run_loop"]
