"""Much at once, for a while, at moments that nobody chose."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from chancy import BrokerError, Chancy, Job, State
from chancy.attempt.judge import MAX_CRASHES
from chancy.embedded import PostgresServer
from chancy.job.ids import new_id
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.ledger import Sampler
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask
from tests.support.waiting import eventually

TIMEOUT_S = 2.0
CHUNK = 25


@dataclass(slots=True)
class Producer:
    """Pushes chunks at a pace; one whose push fails is pushed again, under the same ids."""

    chancy: Chancy
    book: Book
    chance: random.Random
    jobs_per_s: float
    pushed: int = 0
    failed: int = 0

    def job(self, number: int) -> Job:
        # Some are long enough for a worker that is frozen to hold them.
        seconds = 1.0 if number % 20 == 5 else self.chance.uniform(0.001, 0.02)
        if number % 10 == 0:
            return jobs.stagger.job(str(self.book), number, 1, seconds)
        return jobs.work.job(str(self.book), number, seconds)

    async def run(self, over: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not over():
            first = self.pushed
            made = [self.job(number).with_id(new_id()) for number in range(first, first + CHUNK)]
            await self._push(made)
            self.pushed += CHUNK
            due = began + self.pushed / self.jobs_per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _push(self, made: list[Job]) -> None:
        while True:
            try:
                await self.chancy.push_many(made)
            except BrokerError:
                self.failed += 1
                await asyncio.sleep(0.05)
            else:
                return


class Chaos:
    """Breaks what there is, each thing at a pace of its own.

    :param over: whether it is enough.
    """

    def __init__(
        self, dsn: str, fleet: Fleet, chance: random.Random, over: Callable[[], bool]
    ) -> None:
        self._dsn = dsn
        self._fleet = fleet
        self._chance = chance
        self._over = over
        self.frozen = self.crashed = self.terminated = 0
        self._holder: psycopg.AsyncConnection[Any] | None = None

    async def _paced(
        self, least_s: float, most_s: float, do: Callable[[], Awaitable[None]]
    ) -> None:
        due = time.monotonic()
        while True:
            due = max(due + self._chance.uniform(least_s, most_s), time.monotonic())
            # The pace of the fault, not a wait for an effect.
            await asyncio.sleep(due - time.monotonic())
            if self._over():
                return
            await do()

    async def kill(self, least_s: float, most_s: float, *, serving: int = 0) -> None:
        """SIGKILL of one that serves, once so many do: on a busy machine they take long to start,
        and without any that runs jobs nothing would be broken."""

        async def do() -> None:
            await eventually(lambda: len(self._fleet.serving()) >= serving, timeout=60.0)
            await asyncio.to_thread(self._fleet.kill, self._fleet.choose())

        await self._paced(least_s, most_s, do)

    async def freeze(self, every_s: float) -> None:
        """SIGSTOP of one for three times the timeout, while another one serves."""

        async def do() -> None:
            await eventually(lambda: len(self._fleet.serving()) > 1, timeout=60.0)
            self.frozen += 1
            await self._fleet.freeze(self._fleet.choose(), 3 * TIMEOUT_S)

        await self._paced(every_s, every_s, do)

    async def crash(self, server: PostgresServer, every_s: float) -> None:
        """An immediate crash of the server, under a snapshot that is held from start to crash."""
        await self._hold()

        async def do() -> None:
            await asyncio.to_thread(server.restart, "immediate")
            self.crashed += 1
            await self._hold()

        await self._paced(every_s, every_s, do)
        assert self._holder is not None
        await self._holder.close()

    async def _hold(self) -> None:
        """Keep a snapshot open: nothing that dies from now on can be cleaned up."""
        if self._holder is not None:
            await self._holder.close()
        self._holder = await psycopg.AsyncConnection.connect(
            self._dsn, application_name="holder", autocommit=True
        )
        await self._holder.execute("begin isolation level repeatable read")
        await self._holder.execute("select count(*) from chancy.jobs")

    async def terminate(self, every_s: float) -> None:
        """End two sessions of anybody's by ``pg_terminate_backend``."""

        async def do() -> None:
            with contextlib.suppress(psycopg.OperationalError):  # the server is away
                found = await asyncio.to_thread(
                    ask,
                    self._dsn,
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                    " and application_name <> 'holder' order by random() limit 2",
                )
                self.terminated += len(found)

        await self._paced(every_s / 2, every_s, do)


def enough(fleet: Fleet, chaos: Chaos, seconds: float) -> bool:
    """Whether as much was broken as is meant to be in so many seconds, and some worker that was
    taken for dead settled something all the same."""
    return (
        len(fleet.dead) >= seconds / 8
        and chaos.frozen >= 4
        and chaos.crashed >= 3
        and chaos.terminated >= seconds
        and fleet.stale() > 0
    )


def check(dsn: str, book: Book, fleet: Fleet, producer: Producer) -> None:
    """What was acknowledged has ended, once, as it had to."""
    rows = ask(
        dsn,
        "select (arguments ->> 'number')::int, state, crashes, attempt from chancy.finished_jobs",
    )
    assert sorted(number for number, *_ in rows) == list(range(producer.pushed))
    for number, state, crashes, attempt in rows:
        if crashes >= MAX_CRASHES:
            assert state == State.FAILED, number
        else:
            assert (state, attempt) == (State.SUCCEEDED, 2 if number % 10 == 0 else 1), number
    ledger.check(dsn)
    oracles.check_bounds(dsn)
    oracles.check_claimed_before_each_run(dsn, book)
    overlaps = oracles.find_overlaps(book, fleet.taken_for_dead())
    assert overlaps == [], (ledger.silenced(dsn), fleet.killed_at)


@pytest.mark.chaos
@pytest.mark.timeout(360)
async def test_kills_freezes_crashes_and_lost_sessions_at_once(
    own_server: OwnServer, book: Book, start_worker: StartWorker
) -> None:
    """For 28 s, and on a busy machine until enough was broken. With a leader, so that whoever is
    frozen is taken for dead before it wakes up."""
    seed, seconds, at_most_s = 8, 28.0, 120.0
    fleets.tell(seed=seed)
    server = own_server()
    dsn, chance = server.dsn(), random.Random(seed)
    ledger.open_ledger(dsn)
    settings: dict[str, Any] = {"heartbeat_timeout_s": TIMEOUT_S, "lease_s": 1.0}
    fleet = Fleet(dsn, start_worker, size=4, chance=chance, concurrency=32, **settings)
    fleet.wait_until_ready()
    began = time.monotonic()

    def over() -> bool:
        passed_s = time.monotonic() - began
        return passed_s > at_most_s or (passed_s > seconds and enough(fleet, chaos, seconds))

    chaos = Chaos(dsn, fleet, chance, over)
    async with Chancy(dsn) as chancy:
        producer = Producer(chancy, book, chance, jobs_per_s=250)
        with Sampler(dsn) as sampler:
            await asyncio.gather(
                producer.run(over),
                chaos.kill(1.0, 3.0, serving=2),
                chaos.freeze(1.0),
                chaos.crash(server, 9.0),
                chaos.terminate(0.5),
            )
            await eventually(lambda: tables.live(dsn) == 0, timeout=120.0)
    await asyncio.to_thread(fleet.stop)
    fleets.tell(
        jobs=producer.pushed,
        pushed_again=producer.failed,
        killed=len(fleet.dead),
        frozen=chaos.frozen,
        crashes_of_the_server=chaos.crashed,
        sessions_terminated=chaos.terminated,
        stale=fleet.stale(),
        taken_for_dead=len(fleet.taken_for_dead()),
        claimed_again=ledger.repeated(dsn),
        samples=len(sampler.samples),
    )
    sampler.check(at_least=int(seconds))
    assert server.log.read_text().count("database system was interrupted") == chaos.crashed
    assert enough(fleet, chaos, seconds)
    check(dsn, book, fleet, producer)
