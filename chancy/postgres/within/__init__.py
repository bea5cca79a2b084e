"""Runs statements in a transaction of the caller: ``within=`` of `push` and other calls.

Supports the connections of several libraries. A library is imported only for one of its own
objects, so only if the caller has imported it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import lru_cache, partial
from typing import Any, Protocol, TypeVar

from chancy.postgres.drivers.borrowed import Borrowed
from chancy.postgres.drivers.session import Session
from chancy.postgres.within.calls import Fetch, FetchSync, block, listed

T = TypeVar("T")

#: What `push` and `push_many` accept as ``within``. Sync connections block the event loop.
ACCEPTED = (
    "a connection from chancy.transaction()",
    "a psycopg 3 connection or cursor (sync or async)",
    "an asyncpg connection",
    "an SQLAlchemy 2 AsyncSession, AsyncConnection, Session or Connection",
)
#: What `sync_push` and `sync_push_many` accept.
ACCEPTED_SYNC = (
    "a sync psycopg 3 connection or cursor",
    "an SQLAlchemy 2 Session or Connection",
    "Django's connection",
)


class Library(Protocol):
    """Binds the connections of one library.

    Both functions return None for an object that is no connection, and raise TypeError with a hint
    for a connection that cannot be used in this way.
    """

    def bind(self, within: Any) -> Fetch | None: ...

    def bind_sync(self, within: Any) -> FetchSync | None: ...


def bind(within: Any) -> Fetch:
    """A function that runs statements on the caller's connection: ``await fetch(sql, *params)``.

    They are committed or rolled back with the caller's transaction, and raise the errors of the
    caller's library. The function may be called from another task.

    :raises TypeError: not a supported kind of connection; nothing was sent.
    """
    if isinstance(within, Session | Borrowed):
        return within.fetch
    kind: Any = type(within)
    library = _library(kind)
    fetch = library.bind(within) if library is not None else None
    if fetch is None:
        raise TypeError(f"within= must be {listed(ACCEPTED)}, not {_named(within)}")
    return fetch


def bind_sync(within: Any) -> FetchSync:
    """`bind` for code without an event loop: ``fetch(sql, *params)``."""
    if isinstance(within, Session | Borrowed):
        raise TypeError("within= belongs to an event loop: use `await chancy.push(…)`")
    kind: Any = type(within)
    library = _library(kind)
    fetch = library.bind_sync(within) if library is not None else None
    if fetch is None:
        raise TypeError(f"within= must be {listed(ACCEPTED_SYNC)}, not {_named(within)}")
    return fetch


def bind_blocking(within: Any) -> Fetch:
    """`bind_sync` for coroutines that `run_blocking` runs."""
    return partial(block, bind_sync(within))


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but blocking calls, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise RuntimeError("a blocking call has awaited an event loop")


async def fetch_within(within: Any, sql: str, *params: object) -> list[Any]:
    """Run one statement with ``$1`` placeholders on the caller's connection; see `bind`."""
    return list(await bind(within)(sql, *params))


def fetch_within_sync(within: Any, sql: str, *params: object) -> list[Any]:
    """`fetch_within` for code without an event loop; see `bind_sync`."""
    return list(bind_sync(within)(sql, *params))


@lru_cache(maxsize=64)
def _library(kind: type[Any]) -> Library | None:
    """The library of a type, by its package and those of its bases, as for SQLModel's Session."""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    if "psycopg" in packages:
        from chancy.postgres.within import psycopg

        return psycopg
    if "asyncpg" in packages:
        from chancy.postgres.within import asyncpg

        return asyncpg
    if "sqlalchemy" in packages:
        from chancy.postgres.within import sqlalchemy

        return sqlalchemy
    if "django" in packages:
        from chancy.postgres.within import django

        return django
    return None


def _named(within: object) -> str:
    """The type of an object, without its value: a string may be a DSN with a password."""
    kind = type(within)
    return f"a {kind.__module__}.{kind.__qualname__}"
