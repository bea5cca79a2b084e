"""The API of fennel 0.3, whose programs run with only the import changed.

A thin layer over chancy's queues, retries, results and dead letters. Data that fennel itself has
stored in Redis is not read.
"""

from __future__ import annotations

from chancy.plugins.redis.compat.fennel.application import App
from chancy.plugins.redis.compat.fennel.settings import Settings

__all__ = ["App", "Settings"]
