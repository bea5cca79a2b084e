"""A stream: partitions of ordered events of one type."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, Literal, TypeVar, get_args

from chancy.checks import check_choice, check_number
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.protocols import Coding, Route
from chancy.plugins.redis.streams.model.schema import agree, definition_of
from chancy.plugins.redis.streams.producing.backpressure import Backpressure, SendWait
from chancy.plugins.redis.streams.producing.batch import (
    Part,
    Progress,
    SendBatch,
    async_batches,
    batches,
    collect_replies,
    full_error,
    single_batch,
)
from chancy.plugins.redis.streams.producing.outbox import EventOutboxWriter, outbox_batch
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.text import shown

R = TypeVar("R")

#: The behavior of a send when a partition holds ``size`` unacknowledged events.
Full = Literal["block", "drop_oldest"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
#: More partitions would need more servers than one fleet of workers can use.
MAX_PARTITIONS = 4096
#: Default seconds that a send waits for room in a full partition.
PATIENCE_S = 30.0


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
        #: Whether the definition that is stored is known to be the same.
        self._agreed = False

    async def send(
        self,
        *records: R,
        ids: Sequence[str] | None = None,
        timeout_s: float = PATIENCE_S,
        within: object | None = None,
    ) -> list[str]:
        """Append up to 10,000 records and 16 MiB in one round trip; return their ids.

        The records of one partition are appended together, or not at all.

        :param ids: ids chosen by the caller, rising, one for each record; generated otherwise.
        :param timeout_s: seconds to wait for room in a full partition.
        :param within: a Postgres transaction, any that `Chancy.push` accepts. The records are
            written there, and a worker's relay appends them after the commit: exactly once, in
            order within a partition, 1,000 at a time. No ids can be passed, and none are returned.
        :raises InvalidArguments: a record or an id is not valid, or there are too many records or
            bytes; nothing was sent.
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
        if len(records) == 1 and ids is None and self._agreed:
            id = await self._send_one(records[0])
            if id is not None:
                return [id]
        return await self._flush(single_batch(self, records, ids), timeout_s)

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
        flight = _Flight(progress)
        try:
            async for batch in async_batches(self, records):
                # While the last one is in flight, this one was encoded.
                await flight.wait()
                await flight.start(self._flush(batch, timeout_s))
            await flight.wait()
        except Exception as error:
            with suppress(Exception):  # the first error is the more useful one
                await flight.wait()
            error.add_note(f"{flight.sent:,} records were sent")
            raise
        finally:
            flight.cancel()
        return flight.sent

    def sync_send(
        self,
        *records: R,
        ids: Sequence[str] | None = None,
        timeout_s: float = PATIENCE_S,
        within: object | None = None,
    ) -> list[str]:
        """`send` for threads. The records are encoded in the calling thread."""
        if within is not None:
            if records:
                batch = outbox_batch(self, records, ids)
                self._outbox.put_blocking(self, batch, within)
            return []
        return self._sync_flush(single_batch(self, records, ids), timeout_s)

    def sync_send_many(
        self,
        records: Iterable[R],
        *,
        timeout_s: float = PATIENCE_S,
        progress: Progress | None = None,
        within: object | None = None,
    ) -> int:
        """`send_many` for threads. The records are read and encoded in the calling thread."""
        if within is not None:
            return self._outbox.put_many_blocking(self, records, within, progress)
        sent = 0
        try:
            for batch in batches(self, records):
                sent += len(self._sync_flush(batch, timeout_s))
                if progress is not None:
                    progress(sent)
        except Exception as error:
            error.add_note(f"{sent:,} records were sent")
            raise
        return sent

    async def _send_one(self, record: R) -> str | None:
        """Send one record on the fast path; return None if there is no room or a queue for it."""
        number = self.route.partition(record, self.partitions)
        if self.backpressure.waited(number):
            return None
        fields = self.coding.encode(record)
        reply = await self.link.run(
            "streams.send",
            (self.keys.log(number), self.keys.stat(number)),
            (self.size, self.full, "ids", 0, len(fields), 1, *fields),
            replicas=self.link.settings.replicas,
        )
        return None if reply is None else str(reply[0], "ascii")

    def _sync_flush(self, batch: SendBatch[R], timeout_s: float) -> list[str]:
        return self.link.background.run(self._flush(batch, timeout_s))

    async def _flush(self, batch: SendBatch[R], timeout_s: float) -> list[str]:
        """Send a batch, waiting for room; return the ids, empty strings if it wants none."""
        ids = [""] * batch.count
        if not ids:
            return ids
        parts = batch.parts()
        if not self._agreed:
            await agree(self.link, self.keys, definition_of(self))
            self._agreed = True
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        notify = partial(loop.call_soon_threadsafe, woken.set)
        with SendWait(self.backpressure, timeout_s, notify, loop.is_closed) as wait:
            wait.join(await self._attempt(batch, wait.free(parts), ids))
            while wait.parts:
                if wait.left_s <= 0:
                    raise full_error(self, wait.parts, wait.refused, timeout_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait.pause_s()):
                        await woken.wait()
                woken.clear()
                first = wait.first()
                wait.leave(first, but=await self._attempt(batch, first, ids))
        return ids

    async def _attempt(
        self, batch: SendBatch[R], parts: Sequence[Part], ids: list[str]
    ) -> list[Part]:
        """Send parts; return those that found no room."""
        if not parts:
            return []
        calls = [batch.call(part) for part in parts]
        replies = await self.link.run_many(calls, replicas=self.link.settings.replicas)
        return collect_replies(parts, replies, ids)

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, partitions={self.partitions})"


class _Flight:
    """The batch in flight, and the number of records sent so far."""

    def __init__(self, progress: Progress | None) -> None:
        self.sent = 0
        self._progress = progress
        self._task: asyncio.Task[list[str]] | None = None

    async def start(self, flush: Coroutine[None, None, list[str]]) -> None:
        self._task = asyncio.create_task(flush)
        await asyncio.sleep(0)  # start sending before the next records are encoded

    async def wait(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        try:
            self.sent += len(await task)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if self._progress is not None:
            self._progress(self.sent)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def check_name(what: str, name: str) -> None:
    """Raise `ConfigurationError` unless a name can be part of a key."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{shown(name)} cannot be the name of a {what}: use 1 to 100 of the characters "
            "A-Z a-z 0-9 _ . -, starting with a letter, a digit or _"
        )
