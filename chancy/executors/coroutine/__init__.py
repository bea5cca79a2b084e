"""The async executor."""

from __future__ import annotations

from chancy.executors.coroutine.executor import AsyncExecutor

__all__ = ["AsyncExecutor"]
