"""Sends records to the logs of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from chancy.plugins.redis.streams.model.schema import agree, definition_of
from chancy.plugins.redis.streams.model.target import Target
from chancy.plugins.redis.streams.producing.backpressure import Backpressure, SendWait
from chancy.plugins.redis.streams.producing.batch import (
    BatchBuilder,
    Part,
    SendBatch,
    collect_replies,
    full_error,
    single_batch,
)

R = TypeVar("R")

#: Default seconds that a send waits for room in a full partition.
PATIENCE_S = 30.0

#: Called with the number of records sent so far.
Progress = Callable[[int], object]


class Sender(Generic[R]):
    """Appends records to a stream, keeping their order in each partition.

    :param backpressure: shared by all sends to the stream in this process.
    """

    def __init__(self, stream: Target[R], backpressure: Backpressure) -> None:
        self._stream = stream
        self._backpressure = backpressure
        self._agreed = False

    async def send(
        self,
        records: Sequence[R],
        ids: Sequence[str] | None,
        timeout_s: float,
    ) -> list[str]:
        """See `Stream.send`."""
        if len(records) == 1 and ids is None and self._agreed:
            id = await self._send_one(records[0])
            if id is not None:
                return [id]
        batch = single_batch(self._stream, records, ids)
        found = [""] * batch.count
        await self._flush(batch, found, timeout_s)
        return found

    async def _send_one(self, record: R) -> str | None:
        """Send one record on the fast path; return None if there is no room or a queue for it."""
        stream = self._stream
        number = stream.route.partition(record, stream.partitions)
        if self._backpressure.waited(number):
            return None
        fields = stream.coding.encode(record)
        reply = await stream.link.run(
            "streams.send",
            (stream.keys.log(number), stream.keys.stat(number)),
            (stream.size, stream.full, "ids", 0, len(fields), 1, *fields),
            replicas=stream.link.settings.replicas,
        )
        return None if reply is None else str(reply[0], "ascii")

    async def send_many(
        self,
        records: Iterable[R] | AsyncIterable[R],
        timeout_s: float,
        progress: Progress | None,
    ) -> int:
        """See `Stream.send_many`. The next batch is encoded while the last one is in flight."""
        flight = _Flight(progress)
        builder = BatchBuilder(self._stream)
        try:
            async for record in each(records):
                batch = builder.add(record)
                if batch is not None:
                    await flight.wait()
                    await flight.start(self._flush(batch, [], timeout_s))
            await flight.wait()
            await flight.start(self._flush(builder.rest(), [], timeout_s))
            await flight.wait()
        except Exception as error:
            # Nothing is sent after a failed batch, so that the sent records are the first ones.
            with suppress(Exception):  # the first error is the more useful one
                if not flight.failed:
                    await flight.wait()
                    await flight.start(self._flush(builder.rest(), [], timeout_s))
                    await flight.wait()
            error.add_note(f"{flight.sent:,} records were sent")
            raise
        finally:
            flight.cancel()
        return flight.sent

    def sync_send(
        self,
        records: Sequence[R],
        ids: Sequence[str] | None,
        timeout_s: float,
    ) -> list[str]:
        """`send` for threads. The records are encoded in the calling thread."""
        batch = single_batch(self._stream, records, ids)
        found = [""] * batch.count
        self._sync_flush(batch, found, timeout_s)
        return found

    def sync_send_many(
        self,
        records: Iterable[R],
        timeout_s: float,
        progress: Progress | None,
    ) -> int:
        """`send_many` for threads. The records are read and encoded in the calling thread."""
        sent = 0
        builder = BatchBuilder(self._stream)
        try:
            for record in records:
                batch = builder.add(record)
                if batch is not None:
                    sent += self._sync_flush(batch, [], timeout_s)
                    if progress is not None:
                        progress(sent)
            sent += self._sync_flush(builder.rest(), [], timeout_s)
        except Exception as error:
            with suppress(Exception):  # the first error is the more useful one
                sent += self._sync_flush(builder.rest(), [], timeout_s)
            error.add_note(f"{sent:,} records were sent")
            raise
        if progress is not None:
            progress(sent)
        return sent

    def _sync_flush(self, batch: SendBatch[R], ids: list[str], timeout_s: float) -> int:
        return self._stream.link.background.run(self._flush(batch, ids, timeout_s))

    async def _flush(self, batch: SendBatch[R], ids: list[str], timeout_s: float) -> int:
        """Send a batch, waiting for room; return the number of records."""
        if not batch.count:
            return 0
        parts = batch.parts()
        stream = self._stream
        if not self._agreed:
            await agree(stream.link, stream.keys, definition_of(stream))
            self._agreed = True
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        notify = partial(loop.call_soon_threadsafe, woken.set)
        with SendWait(self._backpressure, timeout_s, notify, loop.is_closed) as wait:
            wait.join(await self._attempt(batch, wait.free(parts), ids))
            while wait.parts:
                if wait.left_s <= 0:
                    raise full_error(stream, wait.parts, wait.refused, timeout_s)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait.pause_s()):
                        await woken.wait()
                woken.clear()
                first = wait.first()
                wait.leave(first, but=await self._attempt(batch, first, ids))
        return batch.count

    async def _attempt(
        self, batch: SendBatch[R], parts: Sequence[Part], ids: list[str]
    ) -> list[Part]:
        """Send parts; return those that found no room."""
        if not parts:
            return []
        link = self._stream.link
        calls = [batch.call(part) for part in parts]
        replies = await link.run_many(calls, replicas=link.settings.replicas)
        return collect_replies(parts, replies, ids)


class _Flight:
    """The batch in flight, and the number of records sent so far."""

    def __init__(self, progress: Progress | None) -> None:
        self.sent = 0
        self.failed = False
        self._progress = progress
        self._task: asyncio.Task[int] | None = None

    async def start(self, flush: Coroutine[None, None, int]) -> None:
        self._task = asyncio.create_task(flush)
        await asyncio.sleep(0)  # start sending before the next records are encoded

    async def wait(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        try:
            count = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        except Exception:
            self.failed = True
            raise
        self.sent += count
        if count and self._progress is not None:
            self._progress(self.sent)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def each(records: Iterable[R] | AsyncIterable[R]) -> AsyncIterator[R]:
    """Iterate over either kind of iterable."""
    if isinstance(records, AsyncIterable):
        async for record in records:
            yield record
    else:
        for record in records:
            yield record
