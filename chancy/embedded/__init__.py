"""Private servers for the demo, for development and for tests: never for production."""

from __future__ import annotations

from chancy.embedded.ports import free_port
from chancy.embedded.postgres import PostgresServer, StopMode

__all__ = ["PostgresServer", "StopMode", "free_port"]
