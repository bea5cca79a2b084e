"""A fleet is replaced under load, and the tables are migrated under the workers that are there."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from chancy import Chancy, State
from chancy.job.ids import new_id
from chancy.postgres.schema import migrate as schema
from tests.faults import book as books
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger, novel, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.ledger import Sampler
from tests.migrations import next_release as later
from tests.migrations.next_release import NEXT
from tests.support.sql import ask
from tests.support.waiting import eventually

#: Statements of a worker of this release.
CLAIM = """
    select id, priority, pos, func, arguments, attempt, max_attempts, crashes, meta, limits,
      waited_s
    from chancy.claim($1::uuid, $2::uuid, $3::text, $4::int, 1000000, null, null)
"""
FINISH = "select finish from chancy.finish($1, $2, $3, null, null, null, null, null)"
REGISTER = "insert into chancy.workers (id, host, pid, queues) values ($1, 'old', 1, '{load}')"
BEAT = "update chancy.workers set beat_at = clock_timestamp() where id = $1 returning 1"
REQUEUE = """
    select requeue
    from chancy.requeue($1, $2, $3, $4, null, null, $5, null, $6::text[], null)
"""
PUSH = """
    insert into chancy.jobs (id, pos, state, queue, func, arguments)
    select t.id, nextval('chancy.positions'), 0, 'load', $2,
      jsonb_build_object('book', $3::text, 'number', t.number)
    from unnest($1::uuid[], $4::int[]) as t (id, number)
"""
WORK = jobs.work.job.template.func
SLOTS = 10


class OldWorker:
    """A worker of this release, as the server sees it: its statements, on a session in which
    they were prepared before the tables became those of the next release."""

    def __init__(self, dsn: str, book: Book) -> None:
        self._dsn = dsn
        self._book = str(book)
        self.id = uuid.uuid4()
        self.claims = self.ran = self.handed_on = 0
        self.stopping = False
        #: The longest time between two claims that were answered.
        self.longest_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        session: Any = await asyncpg.connect(self._dsn)
        try:
            await session.execute(REGISTER, self.id)
            while not self.stopping:
                began = loop.time()
                lease = uuid.uuid4()
                found = await session.fetch(CLAIM, self.id, lease, "load", SLOTS)
                self.longest_s = max(self.longest_s, loop.time() - began)
                self.claims += 1
                await self._end(session, lease, found)
                assert await session.fetch(BEAT, self.id)
                await asyncio.sleep(0.005)
            await session.execute("delete from chancy.workers where id = $1", self.id)
        finally:
            await session.close()

    async def _end(self, session: Any, lease: UUID, found: list[Any]) -> None:
        known = [one for one in found if one["func"] == WORK]
        for one in known:
            number = await session.fetchval(
                "select ($1::jsonb ->> 'number')::int", one["arguments"]
            )
            books.write(self._book, number, "begin")
            books.write(self._book, number, "end")
        if known:
            ids = [one["id"] for one in known]
            ended = await session.fetch(FINISH, ids, [lease] * len(ids), [4] * len(ids))
            assert len(ended) == len(ids)
            self.ran += len(ids)
        unknown = sorted(one["id"] for one in found if one not in known)
        if unknown:
            n = len(unknown)
            back = await session.fetch(
                REQUEUE, unknown, [lease] * n, [2] * n, [0.2] * n, [True] * n,
                ['{"unknown_function": 1}'] * n,
            )  # fmt: skip
            assert len(back) == n
            self.handed_on += n


async def push_as_before(session: Any, book: Book, func: str, numbers: Iterable[int]) -> None:
    numbers = list(numbers)
    await session.execute(PUSH, [new_id() for _ in numbers], func, str(book), numbers)


class OldProducer:
    """Pushes as a caller of this release does."""

    def __init__(self, session: Any, book: Book) -> None:
        self._session = session
        self._book = book
        self.pushed = 0

    async def push(self, chunks: int) -> None:
        for _ in range(chunks):
            numbers = range(self.pushed, self.pushed + 20)
            await push_as_before(self._session, self._book, WORK, numbers)
            self.pushed += 20
            await asyncio.sleep(0.01)


async def migrate_under(dsn: str, producer: OldProducer, old: list[OldWorker]) -> None:
    """Bring the tables to the next release while old workers and producers go on."""
    upgrade = asyncio.to_thread(schema.upgrade, dsn)
    migrating = asyncio.create_task(upgrade)
    before, claims = producer.pushed, [one.claims for one in old]
    while not migrating.done():
        await producer.push(1)
    await migrating
    assert producer.pushed > before, "nothing was pushed while the tables were migrated"
    assert all(one.claims > n for one, n in zip(old, claims, strict=True)), "nobody claimed"


@pytest.fixture
async def old_fleet(dsn: str, book: Book) -> AsyncIterator[list[OldWorker]]:
    """Three workers of this release, on its tables."""
    ledger.open_ledger(dsn)
    old = [OldWorker(dsn, book) for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in old]
    yield old
    for one in old:
        one.stopping = True
    await asyncio.gather(*running)


@pytest.mark.chaos
async def test_old_workers_continue_while_the_tables_are_migrated_and_new_ones_come(
    dsn: str,
    book: Book,
    start_worker: StartWorker,
    old_fleet: list[OldWorker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = old_fleet
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("chancy.postgres.schema.migrate.CORE", later.written(tmp_path))
    session: Any = await asyncpg.connect(dsn)
    producer = OldProducer(session, book)
    await producer.push(30)
    await eventually(lambda: all(one.ran for one in old))
    await migrate_under(dsn, producer, old)
    await producer.push(30)
    numbers = range(1_000_000, 1_000_200)
    async with Chancy(dsn) as chancy:  # a producer that checks no revision
        await chancy.push_many(novel.novelty.job(str(book), number) for number in numbers)
    await eventually(lambda: sum(one.handed_on for one in old) > 0)
    new = [start_worker(dsn, release=2, head=NEXT) for _ in range(2)]
    for worker in new:
        await asyncio.to_thread(worker.wait_until_ready)
    await producer.push(30)
    await session.close()
    for one in old:
        one.stopping = True
    await eventually(lambda: tables.live(dsn) == 0)
    reports = [worker.stop() for worker in new]
    fleets.tell(
        pushed=producer.pushed,
        handed_on=sum(one.handed_on for one in old),
        longest_claim_s=max(one.longest_s for one in old),
    )
    count = producer.pushed + len(numbers)
    assert sum(one.stale for one in reports) == 0
    oracles.check_all_succeeded(dsn, count)
    oracles.check_ran_once(book, [*range(producer.pushed), *numbers])
    ledger.check(dsn)
    assert tables.counters(dsn) == (count, 0, 0)


@pytest.mark.chaos
@pytest.mark.timeout(60)
async def test_workers_are_replaced_one_by_one_and_hand_new_functions_on(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    ledger.open_ledger(dsn)
    old = Fleet(dsn, start_worker, size=3, chance=random.Random(19), release=1)
    old.wait_until_ready()
    pushed = 0

    async def push(until: asyncio.Event) -> None:
        nonlocal pushed
        while not until.is_set():
            # One in five is of the next release: callers may be ahead of workers.
            await chancy.push_many(
                (novel.novelty if number % 5 == 0 else jobs.work).job(str(book), number)
                for number in range(pushed, pushed + 20)
            )
            pushed += 20
            await asyncio.sleep(0.05)

    replaced = asyncio.Event()
    reports, new = [], []
    with Sampler(dsn) as sampler:
        async with asyncio.TaskGroup() as group:
            group.create_task(push(replaced))
            await eventually(lambda: handed_on(dsn) > 0)
            for worker in old.alive:
                new.append(start_worker(dsn, release=2))
                await asyncio.to_thread(new[-1].wait_until_ready)
                reports.append(await asyncio.to_thread(worker.stop))
            replaced.set()
        await eventually(lambda: tables.live(dsn) == 0)
    reports += [worker.stop() for worker in new]
    sampler.check(at_least=5)
    ((handed,),) = ask(
        dsn, "select count(*) from chancy.finished_jobs where meta ? 'unknown_function'"
    )
    fleets.tell(pushed=pushed, handed_on=handed)
    assert handed > 0
    assert sum(report.stale for report in reports) == 0
    # Nothing failed, and no attempt was spent on a worker that did not know the function.
    assert tables.states(dsn) == {State.SUCCEEDED: pushed}
    assert tables.counters(dsn) == (pushed, 0, 0)
    oracles.check_ran_once(book, range(pushed))
    ledger.check(dsn)


def handed_on(dsn: str) -> int:
    """Unfinished jobs that a worker did not know."""
    ((count,),) = ask(dsn, "select count(*) from chancy.jobs where meta ? 'unknown_function'")
    return int(count)
