"""The relay of streams: appends the events of the outbox to their logs, in order and once.

One relay of an application at a time holds a lease. It takes rows, appends them to Redis and
deletes them. If it dies in between, another relay appends them again, and Redis skips the rows that
it has marked. If it is paused in between, Redis refuses its older term, and Postgres its deletion.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from chancy.broker.listener import Listener
from chancy.broker.notices import Topic
from chancy.broker.optional import SqlStore
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, ChancyError, ConfigurationError
from chancy.plugin.leader import elected
from chancy.plugin.runtime import Runtime
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.schema import agree
from chancy.plugins.redis.streams.producing.batch import CHUNK, StreamFull
from chancy.plugins.redis.streams.producing.outbox import (
    EventOutboxReader,
    EventOutboxRow,
    definition_in,
)
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import ScriptCall, Value

logger = logging.getLogger("chancy.redis.streams")

#: Maximum rows and bytes taken at a time.
ROWS, BYTES = 250, 4 * 1024 * 1024
#: Seconds between two polls of the leader, which also gets notifications, and of other workers.
_EVERY_S, _RARELY_S = 2.0, 15.0
#: Seconds of the relay's lease.
LEASE_S = 10.0
#: Seconds until a partition that accepted nothing is retried, at first and at most.
_SOON_S, _LATE_S = 0.5, 30.0
#: Maximum number of checked stream declarations that are remembered.
_MOST_AGREED = 1_000


class EventRelay:
    """Runs beside each worker.

    The leader relays on notification. The others poll rarely, so that events are relayed without a
    leader, too.
    """

    def __init__(self, link: RedisClient, store: SqlStore, runtime: Runtime) -> None:
        self._link = link
        self._store = store
        self._outbox = self._reader()
        self._runtime = runtime
        self._agreed: set[tuple[str, str]] = set()
        #: When partitions are retried that accepted nothing, or that have locked rows. None of
        #: their rows is taken before that, so that they keep their order.
        self._stopped: dict[tuple[str, int], float] = {}
        self._pauses: dict[tuple[str, int], Backoff] = {}
        self._woken = asyncio.Event()
        #: The task of the listener; None while another worker leads.
        self._listening: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Run until cancelled; then release the lease."""
        try:
            await self._relay()
        finally:
            await self._stop_listening()
            try:
                await self._outbox.give_up()
            except BrokerError:
                logger.debug("stream_relay_not_released")

    async def _relay(self) -> None:
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            self._woken.clear()
            try:
                while await self.turn():
                    backoff.reset()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("redis_relay_postponed next_try_s=%.1f error=%s", pause_s, error)
                await self._runtime.clock.sleep(pause_s)
            else:
                backoff.reset()
                await self._wait()

    async def _wait(self) -> None:
        clock, leader = self._runtime.clock, self._runtime.leader
        if not leader.leading:
            await self._stop_listening()
            await elected(leader, clock, _RARELY_S * random.uniform(0.8, 1.2))
            return
        if self._listening is None:
            listener = Listener(
                self._runtime.broker,
                clock,
                Topic.RELAY,
                on_notice=lambda _: self._woken.set(),
                on_resumed=self._woken.set,
            )
            self._listening = asyncio.create_task(listener.serve(), name="chancy redis relay")
        await clock.wait(self._woken, _EVERY_S * random.uniform(0.8, 1.2))

    async def _stop_listening(self) -> None:
        task, self._listening = self._listening, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def turn(self) -> bool:
        """Append the rows that wait; return whether there may be more.

        :raises BrokerError: Postgres or Redis is unavailable; the rows are taken again later.
        """
        now = time.monotonic()
        self._stopped = {place: at for place, at in self._stopped.items() if at > now}
        taken, locked = await self._outbox.take(LEASE_S, ROWS, BYTES, list(self._stopped))
        for place in locked:
            self._pause(place, "another transaction has locked its first row")
        calls: list[ScriptCall] = []
        groups: list[Sequence[EventOutboxRow]] = []
        for place, each in groupby(sorted(taken, key=_by_place), attrgetter("place")):
            some = await self._consistent(_one_script(list(each)))
            if some:
                groups.append(some)
                calls.append(self._call(place, some))
        done: list[EventOutboxRow] = []
        stale = 0
        replies: Sequence[Reply | Exception]
        try:
            replies = await self._link.run_many(calls, replicas=self._link.settings.replicas)
        except BrokerUnavailable:
            await self._restart()
            raise
        for rows, reply in zip(groups, replies, strict=True):
            if not isinstance(reply, Exception) and reply[0] == b"stale":
                stale = max(stale, reply[1])
            else:
                done += await self._appended(rows, reply)
        if done:
            await self._outbox.delete(done)
        if any(isinstance(reply, BrokerUnavailable) for reply in replies):
            await self._restart()
        if stale and not await self._outbox.surpass(stale):
            logger.warning("stream_relay_late rows=%d", len(taken))
            return False
        return bool(taken or locked)

    async def _restart(self) -> None:
        """Continue as another relay, with a later term, after a script whose outcome is unknown.

        It may reach Redis after its rows were appended again and their marks removed: Redis then
        refuses its term.
        """
        outbox, self._outbox = self._outbox, self._reader()
        await outbox.give_up()

    def _reader(self) -> EventOutboxReader:
        return EventOutboxReader(self._store, self._link.prefix, uuid.uuid4())

    async def _consistent(self, rows: Sequence[EventOutboxRow]) -> Sequence[EventOutboxRow]:
        """Return the leading rows whose declaration matches the stored definition."""
        for at, row in enumerate(rows):
            if not await self._is_consistent(row):
                return rows[:at]
        return rows

    async def _is_consistent(self, row: EventOutboxRow) -> bool:
        """Return whether the stored definition matches the row; if not, its partition waits."""
        key = row.stream, row.about
        if key in self._agreed:
            return True
        keys = StreamKeys(self._link.prefix, row.stream)
        try:
            await agree(self._link, keys, definition_in(row.about))
        except (ConfigurationError, BrokerError) as error:
            await self._stop(row, error)
            return False
        if len(self._agreed) >= _MOST_AGREED:
            self._agreed.clear()
        self._agreed.add(key)
        return True

    def _call(self, place: tuple[str, int], rows: Sequence[EventOutboxRow]) -> ScriptCall:
        stream, number = place
        keys = StreamKeys(self._link.prefix, stream)
        about = definition_in(rows[-1].about)
        args: list[Value] = [rows[0].term, about.size, about.full]
        for row in rows:
            args += [row.pos, row.mark, row.width, row.events, *row.values]
        return ScriptCall(
            "streams.relay", (keys.log(number), keys.stat(number), keys.relayed(number)), args
        )

    async def _appended(
        self, rows: Sequence[EventOutboxRow], reply: Reply
    ) -> Sequence[EventOutboxRow]:
        """Return the rows that are in Redis; the partition of the others waits."""
        if isinstance(reply, BrokerError):
            await self._stop(rows[0], reply)
            return ()
        if isinstance(reply, Exception):
            raise reply
        count, is_full = reply
        if is_full:
            await self._stop(rows[count], StreamFull(f"no room for {rows[count].events:,} events"))
        else:
            self._pauses.pop(rows[0].place, None)
        return rows[:count]

    async def _stop(self, row: EventOutboxRow, error: ChancyError) -> None:
        self._pause(row.place, str(error))
        await self._outbox.refuse(row, str(error))

    def _pause(self, place: tuple[str, int], why: str) -> None:
        """Pause a partition, for longer each time, up to half a minute."""
        pauses = self._pauses.setdefault(place, Backoff(base_s=_SOON_S, cap_s=_LATE_S))
        pause_s = pauses.next_s()
        self._stopped[place] = time.monotonic() + pause_s
        logger.warning(
            "stream_relay_blocked stream=%s partition=%d next_try_s=%.1f error=%s",
            *place,
            pause_s,
            why,
        )


def _by_place(row: EventOutboxRow) -> tuple[str, int, int]:
    return row.stream, row.partition, row.pos


def _one_script(rows: Sequence[EventOutboxRow]) -> Sequence[EventOutboxRow]:
    """Return the leading rows that one script may append, at least one; the rest follow later."""
    events = 0
    for at, row in enumerate(rows):
        events += row.events
        if at and events > CHUNK:
            return rows[:at]
    return rows
