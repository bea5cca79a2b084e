from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chancy import Plugin, Runtime, Settlement, State
from chancy.broker import SqlStore, Transaction
from chancy.plugin import Panel
from chancy.postgres.schema.component import Migrations
from chancy.postgres.statements import quoted

if TYPE_CHECKING:
    import click


class Audit(Plugin):
    """Notes which jobs failed or were cancelled. Keeps the newest entries."""

    settling_states = frozenset({State.FAILED, State.CANCELLED})

    def __init__(self, *, keep: int = 1000) -> None:
        self.keep = keep

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.audit"

    def get_dependencies(self) -> Sequence[str]:
        return ["chancy.leadership"]

    def migrations(self) -> Migrations:
        return Migrations(name="audit", package="chancy_audit.migrations", head="0002")

    def commands(self) -> Sequence[click.Command]:
        from chancy_audit.commands import audit

        return [audit]

    def panels(self) -> Sequence[Panel]:
        from chancy_audit.commands import entries

        return [Panel(name="audit", title="Jobs that did not succeed", rows=entries)]

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        sql = f"""
            insert into {quoted(tx.schema)}.audit_entries (what)
            select what from unnest($1::text[]) as u (what)
        """
        await tx.fetch(sql, [f"job {one.id} {one.state.label}" for one in batch])

    async def serve(self, runtime: Runtime) -> None:
        store = runtime.broker
        if not isinstance(store, SqlStore):
            return
        table = f"{quoted(store.schema)}.audit_entries"
        sql = f"delete from {table} where id <= (select max(id) - $1::bigint from {table})"
        while True:
            await runtime.leader.wait()
            await store.fetch(sql, self.keep)
            await runtime.clock.sleep(60)
