"""`Borrowed`: a session of the pool for the duration of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row


class Borrowed:
    """A `Connection` that can be given back: every call after `end` raises RuntimeError.

    A task may outlive the transaction that it was given. By then another task may have a
    transaction of its own on the same session.
    """

    def __init__(self, session: Connection) -> None:
        self._lent: Connection | None = session

    def end(self) -> None:
        self._lent = None

    @property
    def _session(self) -> Connection:
        if self._lent is None:
            raise RuntimeError("the transaction has ended: its connection cannot be used any more")
        return self._lent

    @property
    def closed(self) -> bool:
        return self._lent is None or self._lent.closed

    @property
    def pooled(self) -> bool:
        return self._session.pooled

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        return await self._session.fetch(sql, *params, deadline_s=deadline_s)

    async def command(self, sql: str) -> object:
        return await self._session.command(sql)

    def check_idle(self) -> None:
        self._session.check_idle()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return self._session.transaction()

    async def listen(self, channel: str) -> None:
        await self._session.listen(channel)

    async def notifications(
        self, timeout_s: float, handle: Callable[[str], bool] | None = None
    ) -> list[str]:
        return await self._session.notifications(timeout_s, handle)

    def abort(self) -> None:
        self._session.abort()

    async def close(self) -> None:
        await self._session.close()
