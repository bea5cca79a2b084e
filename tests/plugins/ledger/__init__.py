"""A plugin as others would write one: with tables in two revisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chancy.broker.optional import SqlStore
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Panel, Runtime
from chancy.postgres.schema.component import Migrations
from chancy.postgres.statements import quoted

if TYPE_CHECKING:
    import click


class Ledger(Plugin):
    """Writes down when a worker starts."""

    @classmethod
    def get_identifier(cls) -> str:
        return "tests.ledger"

    def migrations(self) -> Migrations | None:
        return Migrations(name="ledger", package="tests.plugins.ledger.migrations", head="0002")

    def commands(self) -> Sequence[click.Command]:
        from tests.plugins.ledger.commands import ledger

        return [ledger]

    def panels(self) -> Sequence[Panel]:
        from tests.plugins.ledger.commands import entries

        return [Panel(name="ledger", title="Ledger", rows=entries)]

    async def serve(self, runtime: Runtime) -> None:
        store = runtime.broker
        if isinstance(store, SqlStore):
            await store.fetch(
                f"insert into {quoted(store.schema)}.ledger_entries (worker_id) values ($1)",
                runtime.worker_id,
            )
