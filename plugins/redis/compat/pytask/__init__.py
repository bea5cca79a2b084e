"""The API of pytask 0.1, whose programs run with changed imports on Python 3.

A thin layer over `chancy.plugins.redis.services`. It uses the keys of pytask, and a few new ones.
"""

from __future__ import annotations

from chancy.plugins.redis.compat.pytask.application import PyTask
from chancy.plugins.redis.compat.pytask.calls import PyTaskHelpers
from chancy.plugins.redis.compat.pytask.task import Task, run_loop
from chancy.plugins.redis.compat.pytask.tasks import Cleanup, Monitor

__all__ = ["Cleanup", "Monitor", "PyTask", "PyTaskHelpers", "Task", "run_loop"]
