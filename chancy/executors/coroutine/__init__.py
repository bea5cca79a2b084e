"""The executor of coroutines."""

from __future__ import annotations

from chancy.executors.coroutine.executor import AsyncExecutor

__all__ = ["AsyncExecutor"]
