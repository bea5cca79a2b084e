"""Receives notifications on a dedicated session, and probes that they arrive."""

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
    """Listens on a channel of one schema.

    Never opens a transaction: a listener in a transaction stops the server from truncating its
    notification queue.
    """

    def __init__(
        self, connection: Connection, statements: Statements, topic: Topic = Topic.WORK
    ) -> None:
        self._connection = connection
        self._sql = statements
        self._channel = channel(statements.schema, topic)

    async def listen(self) -> None:
        await self._connection.listen(self._channel)

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        handle_payload = None if handle is None else partial(_handle, handle)
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            payloads = await self._connection.notifications(left_s, handle_payload)
            notices = _notices(payloads)
            # Do not return early for invalid payloads alone: an empty list makes the caller probe.
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
            notices = await self.receive(left)
            others += [notice for notice in notices if notice.kind is not NoticeKind.PROBE]
            if any(notice.token == nonce for notice in notices):
                return others
        self._connection.abort()
        raise BrokerUnavailable(
            f"a test notification did not arrive within {timeout_s:g} s: the connection is dead, "
            "or a pooler or proxy does not pass notifications on; pass listen_dsn, a DSN of the "
            "server itself"
        )

    async def close(self) -> None:
        await self._connection.close()


def _handle(handle: Callable[[Notice], bool], payload: str) -> bool:
    notice = parse(payload)
    return notice is not None and handle(notice)


def _notices(payloads: list[str]) -> list[Notice]:
    return [notice for notice in map(parse, payloads) if notice is not None]
