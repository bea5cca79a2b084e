"""Statements inside a transaction of the caller's, whatever the library it came with.

No library is imported that the caller has not imported: an object of a library that is not
loaded cannot be given.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from chancy.postgres.drivers.session import Session
from chancy.postgres.within.calls import Fetch, FetchSync, listed

#: What `push` and `push_many` take as ``within``. The sync ones block the event loop meanwhile.
ACCEPTED = (
    "what chancy.transaction() gives",
    "a psycopg 3 connection or cursor (sync or async)",
    "an asyncpg connection",
    "an SQLAlchemy 2 AsyncSession, AsyncConnection, Session or Connection",
)
#: What `sync_push` and `sync_push_many` take.
ACCEPTED_SYNC = (
    "a sync psycopg 3 connection or cursor",
    "an SQLAlchemy 2 Session or Connection",
    "Django's connection",
)


class Library(Protocol):
    """Makes functions of the objects of one library.

    Both return None for what is no connection, and raise TypeError with what to do for one that
    cannot be used in this way.
    """

    def bind(self, within: Any) -> Fetch | None: ...

    def bind_sync(self, within: Any) -> FetchSync | None: ...


def bind(within: Any) -> Fetch:
    """What runs statements on the caller's connection: ``await fetch(sql, *params)``.

    They commit or roll back with the rest. Errors are those of the caller's own library. The
    function may be called from another task than this.

    :raises TypeError: it is no kind of connection that we know; nothing was sent.
    """
    if isinstance(within, Session):
        return within.fetch
    kind: Any = type(within)
    library = _library(kind)
    fetch = library.bind(within) if library is not None else None
    if fetch is None:
        raise TypeError(f"within= takes {listed(ACCEPTED)}; {_named(within)} is none of these")
    return fetch


def bind_sync(within: Any) -> FetchSync:
    """The same for code that does not run in an event loop: ``fetch(sql, *params)``."""
    if isinstance(within, Session):
        raise TypeError("within= is of an event loop: use `await chancy.push(…)`")
    kind: Any = type(within)
    library = _library(kind)
    fetch = library.bind_sync(within) if library is not None else None
    if fetch is None:
        raise TypeError(f"within= takes {listed(ACCEPTED_SYNC)}; {_named(within)} is none of these")
    return fetch


async def fetch_within(within: Any, sql: str, *params: object) -> list[Any]:
    """Run one statement with ``$1`` placeholders on the caller's connection; see `bind`."""
    return list(await bind(within)(sql, *params))


def fetch_within_sync(within: Any, sql: str, *params: object) -> list[Any]:
    """`fetch_within` for code that does not run in an event loop; see `bind_sync`."""
    return list(bind_sync(within)(sql, *params))


@lru_cache(maxsize=64)
def _library(kind: type[Any]) -> Library | None:
    """By the packages of the type and of what it is derived from: SQLModel has a Session, too."""
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
    """The type alone: a text may be a DSN with a password."""
    kind = type(within)
    return f"a {kind.__module__}.{kind.__qualname__}"
