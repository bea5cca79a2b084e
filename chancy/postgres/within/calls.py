"""What the libraries share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

Fetch = Callable[..., Awaitable[Sequence[Any]]]
FetchSync = Callable[..., Sequence[Any]]


def listed(things: Sequence[str]) -> str:
    """``a, b, or c``"""
    return f"{', '.join(things[:-1])}, or {things[-1]}"


async def block(fetch: FetchSync, sql: str, *params: object) -> Sequence[Any]:
    """Run a statement of a sync connection in an event loop, which waits for it."""
    return fetch(sql, *params)
