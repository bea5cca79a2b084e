"""Base classes, at the import path of runnel."""

from __future__ import annotations

from chancy.plugins.redis.compat.runnel.parts import Compressor, Middleware, Serializer

__all__ = ["Compressor", "Middleware", "Serializer"]
