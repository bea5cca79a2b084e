"""A transaction on a session of either driver."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol

from chancy.errors import StatementFailed
from chancy.postgres.drivers import sqlstates

# Set for each transaction: behind a pooler we cannot set the level of the session.
_BEGIN: Final = "begin isolation level read committed"


class Session(Protocol):
    """The part of a session that a transaction uses."""

    in_transaction: bool

    @property
    def closed(self) -> bool: ...

    async def command(self, sql: str) -> str: ...

    def abort(self) -> None: ...


class Transaction:
    """Implements `Connection.transaction`.

    Not a generator: one that is discarded with an open transaction could not await the rollback.
    """

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> None:
        if self._session.in_transaction:
            raise RuntimeError("a transaction was started inside another transaction")
        await self._session.command(_BEGIN)
        self._session.in_transaction = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        session.in_transaction = False
        if kind is None:
            # The server responds to a commit after a failed statement with ROLLBACK, not an error.
            if await self._commit() != "COMMIT":
                raise StatementFailed(
                    "the transaction was rolled back: one of its statements had failed",
                    sqlstate=sqlstates.FAILED_TRANSACTION,
                )
        elif session.closed:
            pass
        elif issubclass(kind, GeneratorExit):
            session.abort()
        else:
            await self._roll_back()

    async def _commit(self) -> str:
        try:
            return await self._session.command("commit")
        except StatementFailed:
            raise
        except BaseException:
            # For example, another task still runs a statement on the session. The next statement
            # would become part of this transaction and be acknowledged without a commit.
            self._session.abort()
            raise

    async def _roll_back(self) -> None:
        # Keep the caller's exception; a session that cannot roll back is not used again.
        try:
            await self._session.command("rollback")
        except Exception:
            self._session.abort()
