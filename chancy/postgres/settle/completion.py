"""Completes a running job in a transaction that the job has opened."""

from __future__ import annotations

from importlib import resources
from uuid import UUID

from chancy.postgres.statements import load
from chancy.postgres.within import fetch_within, fetch_within_sync


class PostgresCompletion:
    """Implements `chancy.context.host.Completion`, in the process that runs the job.

    :param schema: the schema of the tables.
    """

    def __init__(self, schema: str) -> None:
        self._sql = load(resources.files("chancy.postgres") / "sql", "complete", schema)

    async def complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool:
        return bool(await fetch_within(tx, self._sql, id, lease, result))

    def sync_complete(self, tx: object, id: UUID, lease: UUID, result: str | None) -> bool:
        return bool(fetch_within_sync(tx, self._sql, id, lease, result))
