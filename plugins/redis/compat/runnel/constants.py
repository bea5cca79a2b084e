"""``ExceptionPolicy``, at the import path of runnel."""

from __future__ import annotations

from chancy.plugins.redis.compat.runnel.application import ExceptionPolicy

__all__ = ["ExceptionPolicy"]
