"""A stream: partitions of ordered events of one type."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Generic, Literal, TypeVar, get_args

from chancy.checks import check_choice, check_number
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.protocols import Coding, Route
from chancy.plugins.redis.streams.producing.backpressure import Backpressure
from chancy.plugins.redis.streams.producing.outbox import EventOutboxWriter, outbox_batch
from chancy.plugins.redis.streams.producing.sender import PATIENCE_S, Progress, Sender
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.text import shown

R = TypeVar("R")

#: The behavior of a send when a partition holds ``size`` unacknowledged events.
Full = Literal["block", "drop_oldest"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
#: More partitions would need more servers than one fleet of workers can use.
MAX_PARTITIONS = 4096


class Stream(Generic[R]):
    """Partitions of ordered events. Created by `Streams.stream`.

    :param partitions: number of partitions; fixed, stored with the stream and checked at start.
    :param size: approximate number of events that a partition keeps; acknowledged events beyond it
        are trimmed.
    :param full: the behavior of a send when no event can be trimmed: wait, or drop the oldest
        events and count them.
    """

    def __init__(
        self,
        name: str,
        *,
        link: RedisClient,
        coding: Coding[R],
        route: Route[R],
        partitions: int = 16,
        size: int = 50_000,
        full: Full = "block",
        outbox: EventOutboxWriter | None = None,
    ) -> None:
        check_name("stream", name)
        check_number(partitions, f"the stream {name}: partitions", 1, MAX_PARTITIONS)
        check_number(size, f"the stream {name}: size", 1)
        check_choice(full, f"the stream {name}: full", get_args(Full))
        self.name = name
        self.link = link
        self.coding = coding
        self.route = route
        self.partitions = partitions
        self.size = size
        self.full: Full = full
        self.keys = StreamKeys(link.prefix, name)
        self._outbox = outbox or EventOutboxWriter()
        #: Shared by all sends of this process, from loops and threads.
        self.backpressure = Backpressure()
        self._sender = Sender(self, self.backpressure)

    async def send(
        self,
        *records: R,
        ids: Sequence[str] | None = None,
        timeout_s: float = PATIENCE_S,
        within: object | None = None,
    ) -> list[str]:
        """Append up to 10,000 records in one round trip; return their ids.

        The records of one partition are appended together, or not at all.

        :param ids: ids chosen by the caller, rising, one for each record; generated otherwise.
        :param timeout_s: seconds to wait for room in a full partition.
        :param within: a Postgres transaction, any that `Chancy.push` accepts. The records are
            written there, and a worker's relay appends them after the commit: exactly once, in
            order within a partition, 1,000 at a time. No ids can be passed, and none are returned.
        :raises InvalidArguments: a record or an id is not valid; nothing was sent.
        :raises TypeError: ``within`` is not a connection, or there is no database.
        :raises StreamFull: a partition had no room; the others have their records.
        :raises ConfigurationError: the stream is stored with other partitions or another hasher.
        :raises BrokerUnavailable: some records may have been appended.
        """
        if within is not None:
            if records:
                batch = outbox_batch(self, records, ids)
                await self._outbox.put(self, batch, within)
            return []
        return await self._sender.send(records, ids, timeout_s)

    async def send_many(
        self,
        records: Iterable[R] | AsyncIterable[R],
        *,
        timeout_s: float = PATIENCE_S,
        progress: Progress | None = None,
        within: object | None = None,
    ) -> int:
        """Append any number of records, 1,000 per round trip; return their number.

        If a record cannot be produced or sent, all records before it have been sent; a note of the
        error states their number.

        :param timeout_s: seconds to wait for room in a full partition, each time.
        :param progress: called after each round trip with the number of records sent so far.
        :param within: a Postgres transaction, as for `send`: all records are sent, or none if it
            is rolled back. After an error, the caller must still end the transaction.
        :raises Exception: whatever the iterable or `send` raises.
        """
        if within is not None:
            return await self._outbox.put_many(self, records, within, progress)
        return await self._sender.send_many(records, timeout_s, progress)

    def sync_send(
        self,
        *records: R,
        ids: Sequence[str] | None = None,
        timeout_s: float = PATIENCE_S,
        within: object | None = None,
    ) -> list[str]:
        """`send` for threads, without an event loop."""
        if within is not None:
            if records:
                batch = outbox_batch(self, records, ids)
                self._outbox.put_blocking(self, batch, within)
            return []
        return self._sender.sync_send(records, ids, timeout_s)

    def sync_send_many(
        self,
        records: Iterable[R],
        *,
        timeout_s: float = PATIENCE_S,
        progress: Progress | None = None,
        within: object | None = None,
    ) -> int:
        """`send_many` for threads, without an event loop."""
        if within is not None:
            return self._outbox.put_many_blocking(self, records, within, progress)
        return self._sender.sync_send_many(records, timeout_s, progress)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, partitions={self.partitions})"


def check_name(what: str, name: str) -> None:
    """Raise `ConfigurationError` unless a name can be part of a key."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{shown(name)} cannot be the name of a {what}: use 1 to 100 of the characters "
            "A-Z a-z 0-9 _ . -, starting with a letter, a digit or _"
        )
