"""Ending a running job in a transaction of its own."""

from __future__ import annotations

from importlib import resources
from uuid import UUID

from chancy.postgres.statements import load
from chancy.postgres.within import fetch_within, fetch_within_sync


class PostgresCompletion:
    """See `chancy.context.host.Completion`. Made where the job runs, which may be a child.

    :param schema: of the tables.
    """

    def __init__(self, schema: str) -> None:
        self._sql = load(resources.files("chancy.postgres") / "sql", "complete", schema)

    async def complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool:
        return bool(await fetch_within(tx, self._sql, id, lease, result))

    def sync_complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool:
        return bool(fetch_within_sync(tx, self._sql, id, lease, result))
