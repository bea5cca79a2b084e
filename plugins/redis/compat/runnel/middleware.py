"""Middleware, at the import path of runnel."""

from __future__ import annotations

from chancy.plugins.redis.compat.runnel.parts import DeadLetterMiddleware, Middleware
from chancy.plugins.redis.streams.processing.middleware import Dead

__all__ = ["Dead", "DeadLetterMiddleware", "Middleware"]
