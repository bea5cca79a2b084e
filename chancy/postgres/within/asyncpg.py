"""asyncpg: connections, including those of its pool."""

from __future__ import annotations

from typing import Any

import asyncpg
import asyncpg.pool

from chancy.postgres.within.calls import Fetch, FetchSync


def bind(within: Any) -> Fetch | None:
    if isinstance(within, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        fetch: Fetch = within.fetch
        return fetch
    return None


def bind_sync(within: Any) -> FetchSync | None:
    if bind(within) is None:
        return None
    raise TypeError("within= is an asyncpg connection: use `await chancy.push(…)`")
