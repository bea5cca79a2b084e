"""Private Postgres servers for the demo, development and tests. Do not use them in production."""

from __future__ import annotations

from chancy.embedded.postgres import PostgresServer, StopMode, free_port

__all__ = ["PostgresServer", "StopMode", "free_port"]
