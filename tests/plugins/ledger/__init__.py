"""A plugin as others would write one: with tables in two revisions."""

from __future__ import annotations

from chancy.broker import SqlStore
from chancy.plugin import Plugin, Runtime
from chancy.postgres.component import Migrations
from chancy.postgres.statements import quoted


class Ledger(Plugin):
    """Writes down when a worker starts."""

    @classmethod
    def get_identifier(cls) -> str:
        return "tests.ledger"

    def migrations(self) -> Migrations | None:
        return Migrations(name="ledger", package="tests.plugins.ledger.migrations", head="0002")

    async def serve(self, runtime: Runtime) -> None:
        store = runtime.broker
        if isinstance(store, SqlStore):
            await store.fetch(
                f"insert into {quoted(store.schema)}.ledger_entries (worker_id) values ($1)",
                runtime.worker_id,
            )
