"""A small scenario with all kinds of jobs, in which faults are injected.

A job that succeeds, one that is retried, one that is delayed, one whose worker died, one that is
cancelled, some pushed in bulk and some in a transaction. Whichever single call fails, each job must
have the same outcome, and no job may run more often than it failed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import psycopg

from chancy import BrokerError, Chancy, Queue, State, Worker, job
from chancy.broker.values import WorkerRecord
from chancy.clock import SystemClock
from chancy.job.ids import new_id
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.postgres.broker import PostgresBroker
from chancy.retry import Constant, Jitter
from tests.faults import tables
from tests.faults.flaky_driver import Faults, FlakyDriver, Switchboard
from tests.support.sql import ask
from tests.support.waiting import eventually

Found = TypeVar("Found")

QUEUE = Queue(name="load", executor="async", poll_interval_s=0.05)

#: How often each job has run, by the id of its scenario and its name.
_RAN = Counter[tuple[str, str]]()


@job(queue="load", max_attempts=3)
async def step(scenario: str, name: str, failures: int = 0) -> str:
    """Fails ``failures`` times before it succeeds."""
    _RAN[scenario, name] += 1
    await asyncio.sleep(0)
    if _RAN[scenario, name] <= failures:
        raise ValueError(f"{name} stumbles")
    return name


class QuickClock(SystemClock):
    """A clock that measures real time but waits a twentieth of it."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 20)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        return await super().wait(event, timeout_s / 20)


class Scenario:
    """One run of the scenario on a migrated database, which is emptied first.

    :param stumbles: how often the job whose worker died fails on the next one.
    """

    def __init__(
        self, dsn: str, faults: Faults | None = None, *, patience: int = 3, stumbles: int = 0
    ) -> None:
        self.id = uuid.uuid4().hex
        self.dsn = dsn
        #: How often a caller attempts a call that fails.
        self.patience = patience
        self._stumbles = stumbles
        broker = PostgresBroker(dsn)
        self.switchboard = Switchboard(broker.sql, faults)
        self.broker = PostgresBroker(dsn, driver=FlakyDriver(self.switchboard))
        self.app = Chancy(
            broker=self.broker,
            queues=[QUEUE],
            plugins=[Recovery(sweep_s=1.0), Retries(Constant(0.02, jitter=Jitter.EQUAL))],
            no_default_plugins=True,
            clock=QuickClock(),
        )
        self.cancelled = new_id()
        self.expected: dict[str, int] = {}
        #: How often the worker was started. A failed start may have left claims behind.
        self.starts = 0
        #: Number of stale settlements of the worker.
        self.stale = 0

    async def run(self) -> None:
        """Run the scenario, and retry failed calls as a service would."""
        with psycopg.connect(self.dsn, autocommit=True) as session:
            await self._run(session)

    async def _run(self, session: psycopg.Connection[Any]) -> None:
        await asyncio.to_thread(tables.empty, session)
        await self._again(self.app.broker.open)
        try:
            await self._push()
            await self._orphan()
            worker = Worker(self.app, queues=["load"], heartbeat_s=1.0, heartbeat_timeout_s=5.0)
            await self._again(lambda: self._start(worker))
            try:
                await eventually(lambda: asyncio.to_thread(_done, session), timeout=50.0)
            finally:
                await worker.stop()
            self.stale = worker.stale
        finally:
            await self.app.broker.close()

    def check(self) -> None:
        """Check that each job has finished once, and has run once more than it failed."""
        found = {name: count for (id, name), count in _RAN.items() if id == self.id}
        assert found == self.expected
        states = tables.states(self.dsn)
        assert states == {State.SUCCEEDED: len(self.expected), State.CANCELLED: 1}
        rows = ask(
            self.dsn,
            "select arguments ->> 'name', attempt, crashes, array("
            " select e -> 'types' ->> 0 = 'chancy.Lost'"
            " from jsonb_array_elements(errors) with ordinality as n (e, at) order by at)"
            " from chancy.finished_jobs where state = 4",
        )
        for name, attempt, crashes, lost in rows:
            runs, crashed = self.expected[name], int(name == "orphaned")
            assert crashed <= lost.count(True) < crashed + self.starts, name
            assert (attempt, lost.count(False)) == (runs, runs - 1), name
            # A failure that the process survives begins the count of crashes anew.
            since = lost[::-1].index(False) if False in lost else len(lost)
            assert crashes == since, name

    async def _start(self, worker: Worker) -> None:
        self.starts += 1
        await worker.start()

    async def _push(self) -> None:
        factory = step.job
        plain = factory(scenario=self.id, name="plain").with_id(new_id())
        retried = factory(scenario=self.id, name="retried", failures=1).with_id(new_id())
        delayed = factory(scenario=self.id, name="delayed").with_delay(0.05).with_id(new_id())
        bulk = [factory(scenario=self.id, name=f"bulk {n}").with_id(new_id()) for n in range(3)]
        within = factory(scenario=self.id, name="within").with_id(new_id())
        cancelled = factory(scenario=self.id, name="cancelled").with_delay(3600)

        async def push_within() -> None:
            async with self.app.transaction() as transaction:
                await self.app.push(within, within=transaction)

        await self._again(lambda: self.app.push(plain))
        await self._again(lambda: self.app.push_many([retried, delayed]))
        await self._again(lambda: self.app.push_many(bulk))
        await self._again(push_within)
        await self._again(lambda: self.app.push(cancelled.with_id(self.cancelled)))
        await self._again(lambda: self.app.cancel(self.cancelled))
        names = [job.arguments["name"] for job in (plain, retried, delayed, *bulk, within)]
        self.expected |= dict.fromkeys(names, 1) | {"retried": 2}

    async def _orphan(self) -> None:
        """Push a job that was claimed by a dead worker."""
        orphan = step.job(scenario=self.id, name="orphaned", failures=self._stumbles)
        orphan = orphan.with_priority(9).with_id(new_id())
        await self._again(lambda: self.app.push(orphan))
        dead = WorkerRecord(
            id=uuid.uuid4(), host="gone", pid=1, tags=frozenset(), queues=(), version="0"
        )

        async def claim_one() -> UUID:
            claims = await self.broker.claim("load", worker_id=dead.id, limit=1, thorough=True)
            return claims[0].id

        await self._again(lambda: self.broker.register(dead))
        assert await self._again(claim_one) == orphan.id
        await self._again(lambda: self.broker.unregister(dead.id))
        self.expected["orphaned"] = 1 + self._stumbles

    async def _again(self, call: Callable[[], Awaitable[Found]]) -> Found:
        for _ in range(self.patience - 1):
            try:
                return await call()
            except BrokerError:
                await asyncio.sleep(0.001)
        return await call()


def _done(session: psycopg.Connection[Any]) -> bool:
    return tables.live(session) == 0
