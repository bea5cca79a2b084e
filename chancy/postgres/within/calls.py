"""The types of bound functions, shared by the modules of all libraries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Fetch = Callable[..., Awaitable[Sequence[Any]]]
FetchSync = Callable[..., Sequence[Any]]


def listed(items: Sequence[str]) -> str:
    """Join items as ``a, b, or c``."""
    return f"{', '.join(items[:-1])}, or {items[-1]}"


async def block(fetch: FetchSync, sql: str, *params: object) -> Sequence[Any]:
    """Run a statement on a sync connection. Blocks the event loop."""
    return fetch(sql, *params)
