"""The broker that stores jobs in Postgres."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.contract import never
from chancy.broker.event_loop import check_loop
from chancy.broker.notices import Topic
from chancy.broker.optional import Survey
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import (
    MOST_RUNNING,
    Cancellation,
    Capability,
    PreparedJob,
    Promotion,
    QueuePosition,
    WorkerRecord,
)
from chancy.checks import check_number
from chancy.clock import Backoff
from chancy.errors import BrokerUnavailable, ConfigurationError, NotOpen
from chancy.job.definition import QueuedJob
from chancy.postgres import drivers, rows
from chancy.postgres.catalog import Catalog
from chancy.postgres.claim.claims import PostgresClaims
from chancy.postgres.connections.heartbeat import PostgresHeartbeat, own_memory
from chancy.postgres.connections.lane import Lane, SharedLane, Sharing
from chancy.postgres.connections.listen import PostgresSubscription
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Driver, Row
from chancy.postgres.drivers.borrowed import Borrowed
from chancy.postgres.drivers.pool import CallerSessions, SessionPool
from chancy.postgres.dsn import redacted
from chancy.postgres.promotions import Promotions
from chancy.postgres.push import missing_tables
from chancy.postgres.push.bulk import pieces, store_all
from chancy.postgres.push.coalescing import PushCoalescer
from chancy.postgres.push.statement import insertion, stand_ins
from chancy.postgres.settle.settlements import Settlements
from chancy.postgres.statements import Statements
from chancy.postgres.within import bind, fetch_within
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.text import shown


class PostgresBroker(Catalog):
    """Stores jobs in the tables of one Postgres schema. `Broker` documents each call.

    :param dsn: a URI or ``key=value`` pairs; several hosts for a cluster with failover. A
        function that returns it is called when it is needed, and may raise `ConfigurationError`.
    :param listen_dsn: DSN of the server itself, for LISTEN, if ``dsn`` goes through a pooler.
    :param driver: ``asyncpg``, ``psycopg``, or an object that implements `Driver`.
    :param pool_size: maximum number of sessions for callers. Claims, settlements and upkeep of a
        worker use one session while it is idle, and up to three.
    """

    def __init__(
        self,
        dsn: str | Callable[[], str],
        *,
        schema: str = "chancy",
        listen_dsn: str | None = None,
        driver: drivers.Name | Driver = drivers.DEFAULT,
        pool_size: int = 10,
    ) -> None:
        check_number(pool_size, "pool_size", 1)
        super().__init__(self.fetch, Statements(schema))
        self._dsn = dsn
        self._listen_dsn = listen_dsn
        self._driver = drivers.driver(driver) if isinstance(driver, str) else driver
        self._pool_size = pool_size
        self._pool: SessionPool | None = None
        self._callers: CallerSessions | None = None
        self._opening = asyncio.Lock()
        self._claiming = Lane(self._opened_pool)
        self._settling = Lane(self._opened_pool)
        sharing = Sharing()
        self._upkeeping: Lane = SharedLane(
            self._opened_pool, sharing=sharing, most=1, wait_s=_UPKEEP_WAIT_S
        )
        self._serving: Lane = SharedLane(
            self._opened_pool, sharing=sharing, most=_MOST_SERVING, wait_s=_UPKEEP_WAIT_S
        )
        self._claims = PostgresClaims(self._claiming, self.sql)
        self._promotions = Promotions(self._upkeeping, self.sql)
        self._settlements = Settlements(self._settling, self.sql)
        self._pushes = PushCoalescer(self.fetch, self.transaction, self.sql, self._opened_pool)
        self._session = self._caller_session
        self._upkeep = Catalog(self._upkeeping.fetch, self.sql)

    def __repr__(self) -> str:
        try:
            where = repr(redacted(self.dsn))
        except ConfigurationError:
            where = "no DSN"
        return f"PostgresBroker({where}, schema={self.schema!r})"

    @property
    def dsn(self) -> str:
        return self._dsn if isinstance(self._dsn, str) else self._dsn()

    @property
    def schema(self) -> str:
        return self.sql.schema

    def _opened_pool(self) -> SessionPool:
        """The pool, for calls in the event loop that opened it."""
        if self._pool is None:
            where = redacted(self.dsn)  # without a DSN this is a ConfigurationError, as opening is
            raise NotOpen(f"the broker of {where} is not open: use `async with Chancy(dsn)`")
        check_loop(self._pool.loop, self)
        return self._pool

    async def _connect(self) -> Connection:
        return await self._connect_to(self.dsn, "chancy")

    async def _connect_to(self, dsn: str, name: str) -> Connection:
        """Open a session of this name.

        :raises ConfigurationError: the server refuses the role, or has no such database. Once the
            broker is open, this is a `BrokerUnavailable`, and passes like an outage: the password
            may have changed.
        """
        try:
            return await self._driver.connect(dsn, application_name=name)
        except ConfigurationError as error:
            if self._pool is None:
                raise
            raise BrokerUnavailable(str(error)) from error

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(Capability)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Open a transaction on a session of the pool; pass what it yields as ``within``."""
        async with self._session() as connection, connection.transaction():
            borrowed = Borrowed(connection)
            try:
                yield borrowed
            finally:
                borrowed.end()

    def _caller_session(self) -> AbstractAsyncContextManager[Connection]:
        self._opened_pool()
        assert self._callers is not None
        return self._callers.connection()

    def for_upkeep(self) -> PostgresBroker:
        """See `chancy.broker.optional.Upkeeping`. Only pushes still use the callers' sessions."""
        other = copy.copy(self)
        other._session = self._serving.session  # noqa: SLF001 (its own)
        other._fetch = other.fetch  # noqa: SLF001
        return other

    def check_queue(self, queue: Queue) -> None:
        if queue.broker != DEFAULT_BROKER:
            raise ConfigurationError(
                f"queue {queue.name!r} has the broker {queue.broker!r}, which no plugin of this "
                f"application supplies: pass the plugin, or broker={DEFAULT_BROKER!r}"
            )
        if queue.broker_options:
            raise ConfigurationError(
                f"queue {queue.name!r}: the broker {DEFAULT_BROKER} takes no broker_options "
                f"(got {', '.join(map(shown, queue.broker_options))})"
            )

    async def open(self) -> None:
        """Open the pool. Raises `BrokerUnavailable` if the server cannot be reached."""
        async with self._opening:
            if self._pool is None:
                pool = SessionPool(self._connect)
                try:
                    pool.put(await pool.take())
                except BaseException:
                    await pool.close()
                    raise
                self._pool, self._callers = pool, CallerSessions(pool, self._pool_size)

    async def close(self) -> None:
        try:
            await self._pushes.close()
        finally:
            # Close everything even if one call raises: leftovers are bound to this event loop.
            pool, self._pool, self._callers = self._pool, None, None
            self._opening = asyncio.Lock()
            for lane in (self._claiming, self._settling, self._upkeeping, self._serving):
                lane.reset()
            if pool is not None:
                await pool.close()

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        """Run one statement on a session of the pool."""
        async with self._session() as connection:
            return await connection.fetch(sql, *params, deadline_s=deadline_s)

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        if not jobs:
            return {}
        try:
            if within is None:
                return await self._pushes.push(jobs)
            statement, parameters = insertion(self.sql, jobs, new=False, guarded=False)
            rows = await fetch_within(within, statement, *parameters)
        except Exception as error:
            await missing_tables.check(error, self.fetch, self.schema)
            raise
        return stand_ins(self.sql, statement, rows)

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        try:
            if within is None:
                return await self._pushes.push_many(iter(chunks))
            return await store_all(self.sql, pieces(self.sql, chunks), bind(within))
        except Exception as error:
            await missing_tables.check(error, self.fetch, self.schema)
            raise

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        return await self._claims.claim(
            queue, worker_id=worker_id, limit=limit, thorough=thorough, knows=knows
        )

    async def claim_by(
        self,
        statement: str,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """See `chancy.broker.optional.SqlClaims`."""
        return await self._claims.claim(
            queue,
            worker_id=worker_id,
            limit=limit,
            thorough=True,
            knows=knows,
            statement=statement,
        )

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        return await self._settlements.settle(settlements, inside)

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        return await self._settlements.update_meta(notes)

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        return await self._promotions.promote(limit, worker_id)

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        wanted = list(dict.fromkeys(ids))
        found: dict[UUID, Cancellation] = {}
        backoff = Backoff(base_s=0.01, cap_s=0.5)
        while wanted:
            rows = await self.fetch(self.sql.cancel, wanted)
            found |= {id: Cancellation(outcome) for id, outcome in rows if outcome != "busy"}
            wanted = [id for id in wanted if id not in found]
            if wanted:
                await asyncio.sleep(backoff.next_s())
        return found

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        return frozenset(row[0] for row in await self.fetch(self.sql.run_now, list(ids)))

    async def release(
        self, ids: Sequence[UUID] | None, key: str | None, *, limit: int, within: object | None
    ) -> Sequence[UUID]:
        fetch = self.fetch if within is None else bind(within)
        wanted = None if ids is None else list(ids)
        return [id for (id,) in await fetch(self.sql.release, wanted, key, limit)]

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        await self.fetch(self.sql.watch, list(set(ids)))
        return await self.get(ids)

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        await self.fetch(self.sql.unwatch, list(set(ids)))

    async def position(self, id: UUID) -> QueuePosition | None:
        found = await self.fetch(self.sql.position, id)
        return rows.position(found[0]) if found else None

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        return await self._upkeep.queues(name)

    async def register(self, worker: WorkerRecord) -> None:
        await self._upkeep.register(worker)

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        return await self._upkeep.announce(worker_id, queues, broken, unknown)

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        rows = await self._upkeeping.fetch(self.sql.stop_requests, worker_id)
        return [row[0] for row in rows]

    async def survey(
        self, worker_id: UUID, occupied: Sequence[str], *, count: bool = True
    ) -> Survey:
        """See `chancy.broker.optional.Surveying`."""
        (row,) = await self._upkeeping.fetch(self.sql.survey, worker_id, list(occupied), count)
        return rows.survey(row)

    async def call_all(self, queues: Sequence[str]) -> None:
        """See `chancy.broker.optional.Surveying`."""
        await self._upkeeping.fetch(self.sql.call_all, list(queues))

    async def suppress(self, queue: str, seconds: float) -> None:
        # Not on a session of upkeep: it would delay the worker's other statements.
        async with self._caller_session() as connection:
            await connection.fetch(self.sql.suppress, queue, seconds)

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        unanswered = self._claims.unanswered_leases(worker_id)
        found = await self._upkeeping.fetch(
            self.sql.running, worker_id, list(besides), unanswered, MOST_RUNNING
        )
        return {row[0]: row[1] for row in found}

    async def unregister(self, worker_id: UUID) -> None:
        self._claims.remove_worker(worker_id)
        await self._upkeeping.fetch(self.sql.unregister, worker_id)

    async def orphans(self, *, heartbeat_age_s: float, limit: int) -> Sequence[Claim]:
        found = await self._upkeeping.fetch(self.sql.orphans, heartbeat_age_s, limit)
        return [rows.orphan(row) for row in found]

    async def now_s(self) -> float:
        """See `chancy.broker.optional.HasClock`."""
        ((now_s,),) = await self._upkeeping.fetch(self.sql.now)
        return float(now_s)

    async def beat(self, worker_id: UUID, blocked_s: float = 0.0) -> bool:
        sent = blocked_s, time.time(), own_memory()
        return bool(await self._upkeeping.fetch(self.sql.beat, worker_id, *sent))

    def heartbeat(self, worker_id: UUID) -> PostgresHeartbeat:
        return PostgresHeartbeat(self.dsn, self.sql, worker_id)

    async def subscribe(self, topic: Topic = Topic.WORK) -> PostgresSubscription:
        name = _LISTENERS[topic]
        connection = await self._connect_to(self._listen_dsn or self.dsn, name)
        if connection.pooled:
            # The pooler would accept LISTEN and run it on an arbitrary session of the server.
            await connection.close()
            raise BrokerUnavailable(
                f"{self!r} connects through a pooler, where LISTEN does not work: pass "
                "listen_dsn, a DSN of the server itself"
            )
        subscription = PostgresSubscription(connection, self.sql, topic)
        try:
            await subscription.listen()
        except BaseException:
            connection.abort()
            raise
        return subscription


#: Seconds that upkeep waits for a session in use before another one is opened: it is not urgent.
_UPKEEP_WAIT_S = 0.05
#: Statements and transactions of plugins at a time, if some take long or ask for others.
_MOST_SERVING = 3
_LISTENERS = {
    Topic.WORK: "chancy listener",
    Topic.FINISHED: "chancy waiting",
    Topic.RELAY: "chancy relay",
}
