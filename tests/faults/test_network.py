"""The line breaks at the worst moment: after the server has committed, before it could say so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from chancy import BrokerUnavailable, Cancellation, Chancy, Queue, State, Unique, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.values import WorkerRecord
from chancy.job.definition import Job
from chancy.job.ids import new_id
from chancy.plugins.retry import Retries
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import Name
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.support.presence import present
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

WORKER = WorkerRecord(
    id=UUID(int=7), host="here", pid=1, tags=frozenset(), queues=("load",), version="0"
)
#: The end of a statement's last message: only then there will be an answer to lose.
SYNC = b"S\x00\x00\x00\x04"


def names(id: UUID) -> Callable[[bytes], bool]:
    """Matches the messages that carry this id, as either driver writes it."""
    forms = (id.bytes, id.hex.encode(), str(id).encode())
    return lambda sent: any(form in sent for form in forms)


#: How each driver reports a lost line is in tests/integration/drivers: what follows is the same.
@pytest.fixture(params=["asyncpg", pytest.param("psycopg", marks=pytest.mark.chaos)])
async def app(request: pytest.FixtureRequest, proxy: Proxy, dsn: str) -> AsyncIterator[Chancy]:
    """An application whose every session goes through the proxy, with a registered worker."""
    driver: Name = request.param
    async with Chancy(proxy.dsn(dsn), driver=driver) as opened:
        await opened.declare(Queue(name="load"))
        await opened.broker.register(WORKER)
        yield opened


def plain(book: Book, number: int = 0) -> Job:
    return jobs.work.job(book=str(book), number=number).with_id(new_id())


async def claim(app: Chancy) -> list[Claim]:
    return list(await app.broker.claim("load", worker_id=WORKER.id, limit=10, thorough=True))


async def test_a_push_whose_answer_is_lost_stores_the_job_once(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    one = plain(book)
    assert one.id is not None
    proxy.cut_reply_after(names(one.id))
    reference = await app.push(one)
    assert proxy.reply_cut.is_set()
    assert reference.id == one.id
    assert tables.states(dsn) == {State.PENDING: 1}


@asynccontextmanager
async def beside(dsn: str) -> AsyncGenerator[PostgresBroker]:
    """A broker whose sessions do not go through the proxy."""
    async with Chancy(dsn) as other:
        assert isinstance(other.broker, PostgresBroker)
        yield other.broker


async def finish_all(broker: PostgresBroker) -> int:
    """Run all jobs as a worker would; returns how many there were."""
    count = 0
    while claims := await broker.claim("load", worker_id=WORKER.id, limit=1_000, thorough=True):
        ending = [Settlement(one.id, one.lease, State.SUCCEEDED) for one in claims]
        assert await broker.settle(ending) == frozenset()
        count += len(claims)
    return count


async def push_and_finish_before_the_repetition(
    proxy: Proxy, dsn: str, push: Awaitable[object], lost: Callable[[bytes], bool]
) -> int:
    """Lose the answer of a push, and run its jobs before it is repeated; returns how many ran."""
    proxy.cut_reply_after(lost)
    proxy.refuse()
    async with beside(dsn) as broker:
        pushing = asyncio.ensure_future(push)
        await eventually(proxy.reply_cut.is_set)
        ran = await finish_all(broker)
        proxy.heal()
        await pushing
        return ran + await finish_all(broker)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_push_is_not_made_again_for_a_job_that_finished_meanwhile(
    app: Chancy, proxy: Proxy, dsn: str, book: Book, kept: bool
) -> None:
    await app.declare(Queue(name="load", keep_finished=kept), upsert=True)
    one = plain(book)
    assert one.id is not None
    ran = await push_and_finish_before_the_repetition(proxy, dsn, app.push(one), names(one.id))
    assert ran == 1
    assert tables.states(dsn) == ({State.SUCCEEDED: 1} if kept else {})


@pytest.mark.parametrize("count", [2, 3_000])
async def test_a_bulk_push_is_not_made_again_for_jobs_that_finished_meanwhile(
    app: Chancy, proxy: Proxy, dsn: str, book: Book, count: int
) -> None:
    await app.declare(Queue(name="load", keep_finished=False), upsert=True)
    many = [plain(book, number) for number in range(count)]
    assert many[0].id is not None
    lost = names(many[0].id) if count == 2 else lambda sent: b"commit\0" in sent
    ran = await push_and_finish_before_the_repetition(proxy, dsn, app.push_many(many), lost)
    assert ran == count
    assert tables.states(dsn) == {}


async def test_a_unique_push_is_not_made_again_for_a_job_that_finished_meanwhile(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    await app.declare(Queue(name="load", keep_finished=False), upsert=True)
    one = plain(book).with_unique(Unique())
    assert one.id is not None
    ran = await push_and_finish_before_the_repetition(proxy, dsn, app.push(one), names(one.id))
    assert ran == 1


async def test_a_push_without_a_loop_is_not_made_again_for_a_job_that_finished_meanwhile(
    proxy: Proxy, dsn: str, book: Book
) -> None:
    one = plain(book)
    assert one.id is not None
    with Chancy(proxy.dsn(dsn)) as chancy:
        chancy.sync_declare(Queue(name="load", keep_finished=False))
        async with beside(dsn) as broker:
            await broker.register(WORKER)
        push = asyncio.to_thread(chancy.sync_push, one)
        assert await push_and_finish_before_the_repetition(proxy, dsn, push, names(one.id)) == 1
    assert tables.states(dsn) == {}


async def test_a_push_is_not_made_again_for_a_job_that_was_cancelled_meanwhile(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    await app.declare(Queue(name="load", keep_finished=False), upsert=True)
    one = plain(book)
    assert one.id is not None
    proxy.cut_reply_after(names(one.id))
    proxy.refuse()
    async with beside(dsn) as broker:
        pushing = asyncio.create_task(app.push(one))
        await eventually(proxy.reply_cut.is_set)
        assert await broker.cancel([one.id]) == {one.id: Cancellation.CANCELLED}
        proxy.heal()
        await pushing
    assert tables.states(dsn) == {}


async def test_a_bulk_push_whose_commit_is_not_answered_can_be_made_again(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    many = [plain(book, number) for number in range(8_000)]
    proxy.cut_reply_after(lambda sent: b"commit\0" in sent)
    with pytest.raises(BrokerUnavailable):
        await app.push_many(many)
    assert proxy.reply_cut.is_set()
    assert tables.states(dsn) == {State.PENDING: 8_000}
    await app.push_many(many)
    assert tables.states(dsn) == {State.PENDING: 8_000}


async def test_a_bulk_push_of_a_few_chunks_whose_commit_is_not_answered_is_made_again(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    many = [plain(book, number) for number in range(6_000)]
    proxy.cut_reply_after(lambda sent: b"commit\0" in sent)
    await app.push_many(many)
    assert proxy.reply_cut.is_set()
    assert tables.states(dsn) == {State.PENDING: 6_000}


async def test_a_claim_whose_answer_is_lost_is_recovered(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    await app.push_many(plain(book, number) for number in range(3))
    proxy.cut_reply_after(names(WORKER.id))
    with pytest.raises(BrokerUnavailable):
        await claim(app)
    assert proxy.reply_cut.is_set()
    assert tables.running(dsn, WORKER.id) == 3
    recovered = await claim(app)
    assert [one.attempt for one in recovered] == [1, 1, 1]
    assert len({one.lease for one in recovered}) == 1
    assert await claim(app) == []
    ending = [Settlement(one.id, one.lease, State.SUCCEEDED) for one in recovered]
    assert await app.broker.settle(ending) == frozenset()
    assert tables.states(dsn) == {State.SUCCEEDED: 3}


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.SCHEDULED, State.PENDING])
async def test_a_settlement_whose_answer_is_lost_is_recognised(
    app: Chancy, proxy: Proxy, dsn: str, book: Book, state: State
) -> None:
    await app.push(plain(book))
    [held] = await claim(app)
    ending = [Settlement(held.id, held.lease, state, delay_s=60.0, crashed=True)]
    proxy.cut_reply_after(names(held.lease))
    with pytest.raises(BrokerUnavailable):
        await app.broker.settle(ending)
    assert proxy.reply_cut.is_set()
    assert tables.states(dsn) == {state: 1}
    assert await app.broker.settle(ending) == frozenset()
    assert tables.states(dsn) == {state: 1}
    job = present(await app.get_job(held.id))
    assert (job.attempt, job.crashes) == (1, 1)


async def test_a_cancellation_whose_answer_is_lost_can_be_made_again(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    await app.push(plain(book))
    [held] = await claim(app)
    waiting = (await app.push(plain(book))).id
    for id in (held.id, waiting):
        proxy.cut_reply_after(names(id))
        with pytest.raises(BrokerUnavailable):
            await app.cancel(id)
        assert proxy.reply_cut.is_set()
    expected = {held.id: Cancellation.ASKED, waiting: Cancellation.FINISHED}
    assert await app.cancel(held.id, waiting) == expected
    assert tables.states(dsn) == {State.CANCELLED: 1, State.RUNNING: 1}


async def test_a_promotion_whose_answer_is_lost_happens_once(
    app: Chancy, proxy: Proxy, dsn: str, book: Book
) -> None:
    due = [plain(book).with_delay(0.001) for _ in range(3)]
    await app.push_many(due)
    await eventually(lambda: tables.overdue(dsn) == len(due))
    assert (await app.broker.promote(1)).promoted == 1  # prepares the statement
    proxy.cut_reply_after(lambda sent: sent[:1] == b"B")
    with pytest.raises(BrokerUnavailable):
        await app.broker.promote(10)
    assert proxy.reply_cut.is_set()
    assert (await app.broker.promote(10)).promoted == 0
    assert [one.id for one in await claim(app)] == [one.id for one in due]


@pytest.mark.chaos
async def test_a_worker_whose_answers_are_lost_runs_each_job_once(
    proxy: Proxy, dsn: str, book: Book
) -> None:
    count = 4_000
    dice = random.Random(6)
    cuts = 0
    app = Chancy(
        proxy.dsn(dsn),
        queues=[Queue(name="load", executor="async", concurrency=8, poll_interval_s=0.05)],
        plugins=[Retries()],
        no_default_plugins=True,
    )
    async with app, Worker(app, queues=["load"]) as worker:
        await app.push_many(
            jobs.work.job(book=str(book), number=number, seconds=0.005) for number in range(count)
        )
        while cuts < 20 and tables.live(dsn):
            proxy.cut_reply_after(lambda sent: sent.endswith(SYNC) and dice.random() < 0.1)
            cuts += await asyncio.to_thread(proxy.reply_cut.wait, 0.1)
        proxy.heal()
        await eventually(lambda: tables.live(dsn) == 0)
    assert cuts > 10, f"only {cuts} answers were lost"
    assert worker.stale == 0
    oracles.check_all_succeeded(dsn, count)
    oracles.check_ran_once(book, range(count))
    assert tables.counters(dsn) == (count, 0, 0)
