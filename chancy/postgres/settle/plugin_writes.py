"""Runs the writes of plugins in the transaction that settles a batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import TransactionHook
from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection

logger = logging.getLogger("chancy.postgres")

#: Seconds allowed for one statement of a plugin, and for all work of one plugin on a batch.
STATEMENT_S = 5.0
PLUGIN_S = 10.0

_SET_TIMEOUT = (
    "select current_setting('statement_timeout'), set_config('statement_timeout', $1, true)"
)


class PluginTransaction:
    """Implements `chancy.broker.transaction.Transaction` on the session of the settlements."""

    def __init__(self, session: Connection, schema: str) -> None:
        self._session = session
        self.schema = schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        return await self._session.fetch(sql, *params, deadline_s=STATEMENT_S * 2)


class PluginWrites:
    """Runs the hooks of plugins, each in a savepoint."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        # Plugins whose hook lost the session or ended the transaction. They are skipped when the
        # batch is settled again, as it would otherwise never be settled.
        self._failed: set[str] = set()

    def wanted(
        self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]
    ) -> list[TransactionHook]:
        """The hooks that want a settlement of this batch."""
        if not inside:
            return []
        states = {settlement.state for settlement in batch}
        return [
            hook
            for hook in inside
            if hook.states & states
            and hook.name not in self._failed
            and (hook.concerns is None or hook.wanted(batch))
        ]

    async def write(
        self, session: Connection, wanted: Sequence[TransactionHook], accepted: Sequence[Settlement]
    ) -> None:
        """Run hooks in turn. Raises `BrokerUnavailable` if the transaction is lost."""
        for hook in wanted:
            batch = hook.wanted(accepted)
            if batch:
                await self._write(session, hook, batch)

    async def _write(
        self, session: Connection, hook: TransactionHook, batch: list[Settlement]
    ) -> None:
        await session.fetch("savepoint inside")
        ((previous, _),) = await session.fetch(_SET_TIMEOUT, str(int(STATEMENT_S * 1000)))
        try:
            async with asyncio.timeout(PLUGIN_S):
                await hook.write(PluginTransaction(session, self._schema), batch)
            # The timeout must not apply to the commit. Both statements fail if the hook has
            # handled the error of one of its own, or has ended the transaction.
            await session.fetch(_SET_TIMEOUT, previous)
            await session.fetch("release savepoint inside")
        except Exception as error:
            logger.exception("settling_failed plugin=%s settlements=%d", hook.name, len(batch))
            await self._undo(session, hook, error)

    async def _undo(self, session: Connection, hook: TransactionHook, error: Exception) -> None:
        """Undo the writes of a hook, the timeout included, or else give up the session."""
        try:
            await session.fetch("rollback to savepoint inside")
            await session.fetch("release savepoint inside")
        except Exception:
            session.abort()
            self._failed.add(hook.name)
            raise BrokerUnavailable(
                f"the plugin {hook.name} lost the transaction of the settlements: {error}"
            ) from error

    def forgive(self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]) -> None:
        """Allow skipped plugins to write again, after their batch has been settled."""
        if self._failed:
            states = {settlement.state for settlement in batch}
            self._failed.difference_update(hook.name for hook in inside if hook.states & states)
