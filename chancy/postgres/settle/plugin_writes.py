"""Runs the writes of plugins in the transaction that settles a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.transaction import TransactionHook
from chancy.containment import Containment, HookFailed
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.postgres.drivers.base import Connection

#: Seconds allowed for one statement of a plugin, and for all work of one plugin on a batch.
STATEMENT_S = 5.0
PLUGIN_S = 10.0
#: A plugin that has lost this many transactions in a row, or has kept them open for the time of a
#: statement in vain, is skipped for a time, in seconds: each of them costs a session and a second
#: transaction, or holds up all settlements.
_MOST_LOST = 3
_SKIPPED_S = 10.0

# Two statements in one message: while a busy worker waits for a response, its event loop runs jobs,
# up to 100 ms at a time.
_BEGIN = "savepoint inside; set local statement_timeout = {ms}"
# The timeout must not apply to the commit.
_END = "set local statement_timeout to default; release savepoint inside"


class PluginTransaction:
    """Implements `chancy.broker.transaction.Transaction` on the session of the settlements.

    Closed when the hook has returned or its time is up: a hook that continues must not write into
    the transaction of another batch.
    """

    def __init__(self, session: Connection, schema: str) -> None:
        self._session = session
        self._until = time.monotonic() + PLUGIN_S
        self.schema = schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        if time.monotonic() > self._until:
            raise BrokerUnavailable("the transaction is over: the hook returned, or its time is up")
        return await self._session.fetch(sql, *params, deadline_s=STATEMENT_S * 2)

    def close(self) -> None:
        self._until = 0.0


class Wanted(NamedTuple):
    """A hook, and the settlements of a batch that it wants.

    :param skipped: the hook does not write; its `on_failed` gets the settlements.
    """

    hook: TransactionHook
    batch: list[Settlement]
    skipped: bool


class PluginWrites:
    """Runs the hooks of plugins, each in a savepoint."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        # Plugins whose hook lost the session or ended the transaction. They are skipped when the
        # batch is settled again, as it would otherwise never be settled.
        self._failed: set[str] = set()
        # How often each plugin has lost the transaction or time in a row, and until when it is
        # skipped.
        self._lost: dict[str, int] = {}
        self._skipped_until: dict[str, float] = {}
        self._contained: dict[str, Containment] = {}

    def wanted(
        self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]
    ) -> list[Wanted]:
        """The hooks that want settlements of this batch, each with these settlements.

        A hook that is skipped is among them if it has an `on_failed`. That is called in the
        transaction: before, it is unknown which settlements pass the fence, and after a commit
        whose response is lost, which ones have passed it.
        """
        if not inside:
            return []
        states = {settlement.state for settlement in batch}
        found: list[Wanted] = []
        for hook in inside:
            if not hook.states & states:
                continue
            skipped = self._is_skipped(hook)
            if skipped and hook.on_failed is None:
                continue
            if concerned := hook.wanted(batch):
                found.append(Wanted(hook, concerned, skipped))
        return found

    def _is_skipped(self, hook: TransactionHook) -> bool:
        until = self._skipped_until.get(hook.name, 0.0)
        return hook.name in self._failed or until > time.monotonic()

    async def write(
        self, session: Connection, wanted: Sequence[Wanted], ids: Set[UUID] | None
    ) -> None:
        """Run hooks in turn. Raises `BrokerUnavailable` if the transaction is lost.

        :param ids: the jobs whose settlements passed the fence; None: all of them.
        """
        for hook, batch, skipped in wanted:
            accepted = _accepted(batch, ids)
            if skipped:
                _report_failed(hook, accepted)
            elif accepted:
                await self._write(session, hook, accepted)

    async def _write(
        self, session: Connection, hook: TransactionHook, batch: list[Settlement]
    ) -> None:
        await session.command(_BEGIN.format(ms=int(STATEMENT_S * 1000)))
        tx = PluginTransaction(session, self._schema)

        async def attempt() -> None:
            await hook.write(tx, batch)
            # Fails if the hook has handled the error of one of its own, or has ended the
            # transaction.
            await session.command(_END)

        started = time.monotonic()
        try:
            await self._containment(hook).run(len(batch), attempt, limit_s=PLUGIN_S)
        except HookFailed as error:
            slow = time.monotonic() - started >= STATEMENT_S
            await self._undo(session, hook, error)
            if slow:
                self._count_lost(hook)
            _report_failed(hook, batch)
        else:
            self._lost.pop(hook.name, None)
        finally:
            tx.close()

    def _containment(self, hook: TransactionHook) -> Containment:
        return self._contained.setdefault(hook.name, Containment(hook.name, "settling"))

    def refused(
        self, wanted: Sequence[Wanted], ids: Set[UUID] | None, error: StatementFailed
    ) -> None:
        """Log a commit that was refused, and report it to the hooks. Any of those that wrote may be
        the cause."""
        for hook, batch, skipped in wanted:
            if not skipped:
                self._containment(hook).failed(error, len(batch))
            _report_failed(hook, _accepted(batch, ids))

    async def _undo(self, session: Connection, hook: TransactionHook, error: HookFailed) -> None:
        """Undo the writes of a hook, the timeout included, or else give up the session."""
        try:
            await session.command("rollback to savepoint inside; release savepoint inside")
        except Exception:
            session.abort()
            self._failed.add(hook.name)
            self._count_lost(hook)
            raise BrokerUnavailable(
                f"the plugin {hook.name} lost the transaction of the settlements: {error}"
            ) from error

    def _count_lost(self, hook: TransactionHook) -> None:
        lost = self._lost[hook.name] = self._lost.get(hook.name, 0) + 1
        if lost >= _MOST_LOST:
            self._skipped_until[hook.name] = time.monotonic() + _SKIPPED_S

    def forgive(self, inside: Sequence[TransactionHook], batch: Sequence[Settlement]) -> None:
        """Allow skipped plugins to write again, after their batch has been settled."""
        if self._failed:
            states = {settlement.state for settlement in batch}
            self._failed.difference_update(hook.name for hook in inside if hook.states & states)


def _accepted(batch: list[Settlement], ids: Set[UUID] | None) -> list[Settlement]:
    """The settlements that passed the fence."""
    if ids is None:
        return batch
    return [settlement for settlement in batch if settlement.id in ids]


def _report_failed(hook: TransactionHook, batch: list[Settlement]) -> None:
    """Tell a hook which settlements are stored without its writes."""
    if batch and hook.on_failed is not None:
        hook.on_failed(batch)
