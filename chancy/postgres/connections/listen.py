"""Hearing notices on a session of our own, and proving that they arrive."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial

from chancy.broker.notices import Notice, NoticeKind, Topic, channel, parse
from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import Connection
from chancy.postgres.statements import Statements


class PostgresSubscription:
    """Listens on a channel of one schema. Never opens a transaction: a listener in one stops the
    cleaning of the server's notification queue."""

    def __init__(
        self, connection: Connection, statements: Statements, topic: Topic = Topic.WORK
    ) -> None:
        self._connection = connection
        self._sql = statements
        self._channel = channel(statements.schema, topic)

    async def listen(self) -> None:
        await self._connection.listen(self._channel)

    async def receive(
        self, timeout_s: float, first: Callable[[Notice], None] | None = None
    ) -> list[Notice]:
        tell = None if first is None else partial(_tell, first)
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            payloads = await self._connection.notifications(left_s, tell)
            notices = _notices(payloads)
            # Garbage is not silence: whoever takes it for that asks for a proof each time.
            if notices or not payloads:
                return notices

    async def probe(self, timeout_s: float) -> list[Notice]:
        nonce = uuid.uuid4().hex
        deadline = time.monotonic() + timeout_s
        await self._connection.fetch(
            self._sql.notify,
            self._channel,
            Notice(NoticeKind.PROBE, nonce).payload(),
            deadline_s=timeout_s,
        )
        others: list[Notice] = []
        while (left := deadline - time.monotonic()) > 0:
            came = await self.receive(left)
            others += [one for one in came if one.kind is not NoticeKind.PROBE]
            if any(one.token == nonce for one in came):
                return others
        self._connection.abort()
        raise BrokerUnavailable(
            f"a notification sent to ourselves did not arrive within {timeout_s:g} s: the line is "
            "dead, or something in between keeps notifications; pass listen_dsn, a DSN that "
            "reaches the server itself"
        )

    async def close(self) -> None:
        await self._connection.close()


def _tell(first: Callable[[Notice], None], payload: str) -> None:
    notice = parse(payload)
    if notice is not None:
        first(notice)


def _notices(payloads: list[str]) -> list[Notice]:
    return [notice for notice in map(parse, payloads) if notice is not None]
