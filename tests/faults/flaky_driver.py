"""A driver whose calls fail where a test wants it, with the errors of real drivers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed
from chancy.postgres.drivers import driver, sqlstates
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row
from chancy.postgres.drivers.session import Session
from chancy.postgres.statements import Statements

CONNECTION_LOST = "08006"


class Faults(Protocol):
    """Decides for each call whether it fails."""

    def strike(self, kind: str, number: int, *, answered: bool) -> str | None:
        """The SQLSTATE with which the ``number``-th call of a kind fails, or None.

        Called twice for each call: before it is sent to the server, and with ``answered`` when the
        server has executed it and its response can still be lost.
        """
        ...


@dataclass(slots=True, eq=False)
class OneFault:
    """Makes one call fail, once."""

    kind: str
    number: int
    sqlstate: str
    #: The server executes the call, and only its response is lost.
    answered: bool = False
    struck: int = 0

    def strike(self, kind: str, number: int, *, answered: bool) -> str | None:
        if (kind, number, answered) != (self.kind, self.number, self.answered):
            return None
        self.struck += 1
        return self.sqlstate


class RandomFaults:
    """Makes any call fail with a probability, while ``active``."""

    def __init__(self, seed: int, probability: float, sqlstates: Sequence[str]) -> None:
        self._random = random.Random(seed)
        self._probability = probability
        self._sqlstates = sqlstates
        self.active = True
        self.struck = 0

    def strike(self, kind: str, number: int, *, answered: bool) -> str | None:
        if not self.active or self._random.random() > self._probability:
            return None
        self.struck += 1
        return CONNECTION_LOST if answered else self._random.choice(self._sqlstates)


class Switchboard:
    """Counts the calls by kind (the name of the statement) and makes them fail."""

    def __init__(self, statements: Statements, faults: Faults | None = None) -> None:
        self._names = {sql: name for name, sql in vars(statements).items() if isinstance(sql, str)}
        self._faults = faults
        self.calls = Counter[str]()

    def kind(self, sql: str) -> str:
        return self._names.get(sql, "other")

    def call(self, kind: str) -> int:
        """Count a call; returns its number among those of its kind, from 1."""
        self.calls[kind] += 1
        return self.calls[kind]

    def check(
        self, kind: str, number: int, connection: Connection | None, *, answered: bool = False
    ) -> None:
        """Raise the error of a failing call; aborts the connection if the error loses it."""
        if self._faults is None:
            return
        sqlstate = self._faults.strike(kind, number, answered=answered)
        if sqlstate is None:
            return
        error: BrokerError = StatementFailed(f"{kind} was told to fail", sqlstate=sqlstate)
        lost = sqlstates.lost if connection else sqlstates.lost_on_connect
        if lost(sqlstate):
            error = BrokerUnavailable(f"{kind} was told to fail ({sqlstate})")
        if connection is not None and lost(sqlstate):
            connection.abort()
        raise error


class FlakyConnection:
    """A session that checks the switchboard before and after each call."""

    def __init__(self, real: Connection, switchboard: Switchboard) -> None:
        self._real = real
        self._switchboard = switchboard

    @property
    def closed(self) -> bool:
        return self._real.closed

    @property
    def pooled(self) -> bool:
        return self._real.pooled

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        kind = self._switchboard.kind(sql)
        number = self._switchboard.call(kind)
        self._switchboard.check(kind, number, self._real)
        rows = await self._real.fetch(sql, *params, deadline_s=deadline_s)
        self._switchboard.check(kind, number, self._real, answered=True)
        return rows

    async def command(self, sql: str) -> object:
        kind = self._switchboard.kind(sql)
        number = self._switchboard.call(kind)
        self._switchboard.check(kind, number, self._real)
        tag = await self._real.command(sql)
        self._switchboard.check(kind, number, self._real, answered=True)
        return tag

    def check_idle(self) -> None:
        self._real.check_idle()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        return self._transaction()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[None]:
        begun = self._switchboard.call("begin")
        self._switchboard.check("begin", begun, self._real)
        async with self._real.transaction():
            yield
            committed = self._switchboard.call("commit")
            self._switchboard.check("commit", committed, self._real)
        self._switchboard.check("commit", committed, self._real, answered=True)

    async def listen(self, channel: str) -> None:
        number = self._switchboard.call("listen")
        self._switchboard.check("listen", number, self._real)
        await self._real.listen(channel)

    async def notifications(
        self, timeout_s: float, handle: Callable[[str], bool] | None = None
    ) -> list[str]:
        return await self._real.notifications(timeout_s, handle)

    def abort(self) -> None:
        self._real.abort()

    async def close(self) -> None:
        await self._real.close()


# So that it is accepted as ``within``.
Session.register(FlakyConnection)


class FlakyDriver:
    """The default driver behind a switchboard."""

    name = "flaky"

    def __init__(self, switchboard: Switchboard) -> None:
        self._real = driver()
        self._switchboard = switchboard

    async def connect(self, dsn: str, *, application_name: str) -> Connection:
        number = self._switchboard.call("connect")
        self._switchboard.check("connect", number, None)
        real = await self._real.connect(dsn, application_name=application_name)
        return FlakyConnection(real, self._switchboard)
