"""Where programs of streams run: a server alone, and a cluster."""

from __future__ import annotations

from tests.plugins.redis.streams.conftest import everywhere, place

__all__ = ["everywhere", "place"]
