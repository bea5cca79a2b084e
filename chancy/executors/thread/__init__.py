"""The thread executor."""

from __future__ import annotations

from chancy.executors.thread.executor import ThreadExecutor

__all__ = ["ThreadExecutor"]
