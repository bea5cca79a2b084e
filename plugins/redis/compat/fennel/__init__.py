"""The call shapes of fennel 0.3: a program of it runs with only the import changed.

What is here names things and nothing else; queues, retries, results and dead letters are those of
every job. What fennel itself has kept in Redis is not read.
"""

from __future__ import annotations

from chancy.plugins.redis.compat.fennel.application import App
from chancy.plugins.redis.compat.fennel.settings import Settings

__all__ = ["App", "Settings"]
