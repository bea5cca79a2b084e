"""A transaction on a session of either driver."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol

from chancy.errors import StatementFailed
from chancy.postgres.drivers import sqlstates

# Said each time: behind a pooler the level of the session is not ours to set.
_BEGIN: Final = "begin isolation level read committed"


class Session(Protocol):
    """What a transaction needs of its session."""

    in_transaction: bool

    @property
    def closed(self) -> bool: ...

    async def command(self, sql: str) -> str: ...

    def abort(self) -> None: ...


class Transaction:
    """See `Connection.transaction`.

    Not a generator: one that is thrown away with an open transaction could not await.
    """

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def __aenter__(self) -> None:
        if self._session.in_transaction:
            raise RuntimeError("a transaction was begun inside a transaction")
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
            # A commit after a failed statement is answered with ROLLBACK, not with an error.
            if await self._commit() != "COMMIT":
                raise StatementFailed(
                    "nothing was committed: a statement of the transaction had failed",
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
            # As where a statement of another task is still under way: what that session is given
            # next would be of this transaction, and acknowledged without a commit.
            self._session.abort()
            raise

    async def _roll_back(self) -> None:
        # The caller's exception counts; a session that cannot roll back is not used again.
        try:
            await self._session.command("rollback")
        except Exception:
            self._session.abort()
