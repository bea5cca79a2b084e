"""`Examination`: the database that the checks look at, and their limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chancy.broker.values import WorkerRecord
from chancy.plugin.tables import PluginSql
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection, Row

if TYPE_CHECKING:
    from chancy.app.app import Chancy

#: Seconds for which the server works on one statement of a check.
_STATEMENT_S = 4.0
#: The most findings of one kind, and values in one finding.
MOST_LISTED = 5
#: The most seconds by which a machine's clock may differ from the server's. A program computes the
#: times of its jobs by its own clock; everything else uses the clock of the server.
MOST_OFFSET_S = 2.0
SQL = PluginSql("chancy.app.checkup", "jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """An open application that is examined.

    :param store: its control broker.
    :param transaction_s: seconds for which a transaction may be open.
    :param wait_s: seconds for which a due job of a served queue may wait.
    """

    chancy: Chancy
    store: PostgresBroker
    transaction_s: float
    wait_s: float

    @property
    def schema(self) -> str:
        return self.store.schema

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Connection]:
        """A transaction whose statements the server ends after 4 s."""
        async with self.store.transaction() as session:
            limit = f"{_STATEMENT_S * 1000:.0f}"
            await session.fetch("select set_config('statement_timeout', $1, true)", limit)
            yield session

    async def fetch(self, name: str, *params: object) -> Sequence[Row]:
        """Run the statement of this name in the folder ``sql``.

        :raises BrokerError: the server is unavailable, rejects the statement, or takes too long.
        """
        async with self.session() as session:
            return await session.fetch(SQL.statement(name, self.schema), *params)

    async def workers(self) -> tuple[Sequence[WorkerRecord], Sequence[WorkerRecord]]:
        """The workers that are alive, and the dead ones."""
        found = await self.chancy.get_workers()
        return (
            [worker for worker in found if not worker.dead],
            [worker for worker in found if worker.dead],
        )
