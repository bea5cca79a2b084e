"""Explains a push that failed because the tables are missing or of another revision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from chancy.errors import BrokerError, SchemaMismatch
from chancy.postgres.drivers import sqlstates
from chancy.postgres.drivers.base import Row
from chancy.postgres.schema import migrate, status


async def check(
    error: Exception, fetch: Callable[[str], Awaitable[Sequence[Row]]], schema: str
) -> None:
    """Raise `SchemaMismatch` if missing or outdated tables explain why a statement failed.

    Does nothing if the revisions cannot be read.

    :param error: raised by chancy or by the driver of the caller, whose transaction has failed.
    :param fetch: runs a statement on another session.
    :raises SchemaMismatch: the tables are missing or of another revision.
    """
    if sqlstates.something_missing(error):
        with suppress(BrokerError):
            _check(error, await migrate.find_revisions(fetch, schema), schema)


def _check(error: Exception, found: dict[str, str], schema: str) -> None:
    try:
        status.check(found, schema)
    except SchemaMismatch as mismatch:
        raise mismatch from error
