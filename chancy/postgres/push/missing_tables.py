"""What is told of a push that failed because the tables are missing, or of another version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from chancy.errors import BrokerError, SchemaMismatch
from chancy.postgres.drivers import sqlstates
from chancy.postgres.drivers.base import Row
from chancy.postgres.schema import component
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema import status as standing


async def tell(
    error: Exception, fetch: Callable[[str], Awaitable[Sequence[Row]]], name: str
) -> None:
    """Look whether the tables are why a statement failed. Nothing is known where they cannot be
    read.

    :param error: of ours or of the driver of a caller, whose transaction cannot be used any more.
    :param fetch: runs a statement on a session of its own.
    :param name: of the schema.
    :raises SchemaMismatch: they are.
    """
    if sqlstates.something_missing(error):
        with suppress(BrokerError):
            _check(error, await schema.find_revisions(fetch, name), name)


def tell_sync(error: Exception, fetch: Callable[[str], Sequence[Row]], name: str) -> None:
    """`tell` for code without an event loop."""
    if sqlstates.something_missing(error):
        with suppress(BrokerError):
            _check(error, component.found_by(fetch, name), name)


def _check(error: Exception, found: dict[str, str], name: str) -> None:
    try:
        standing.check(found, name)
    except SchemaMismatch as mismatch:
        raise mismatch from error
