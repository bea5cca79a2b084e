"""Queues of two brokers in one application: jobs go to the broker of their queue, and are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, Job, Queue, State, Unique, Worker
from chancy.app.diagnosis import Why
from chancy.broker.values import Cancellation, JobFilter
from chancy.errors import BrokerUnavailable, ConfigurationError, PushError
from chancy.postgres.broker import PostgresBroker
from chancy.routing.placement import FRESH_S
from tests.support import jobs
from tests.support.presence import present
from tests.support.two_brokers import TwoBrokers

QUEUES = [
    Queue(name="async", executor="async"),
    Queue(name="far", executor="async", broker="memory"),
]


@pytest.fixture
def two() -> TwoBrokers:
    return TwoBrokers()


@pytest.fixture
async def chancy(dsn: str, two: TwoBrokers) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=QUEUES, plugins=[two], pool_size=3) as made:
        for queue in QUEUES:
            await made.declare(queue)
        yield made


def note(queue: str, value: object = 0) -> Job[object]:
    return jobs.note.job(value=value).with_queue(queue)


async def test_a_job_goes_to_the_broker_of_its_queue(chancy: Chancy, two: TwoBrokers) -> None:
    near = await chancy.push(note("async"))
    far = await chancy.push(note("far"))
    assert two.store.live.keys() == {far.id}
    assert (await chancy.control.get([near.id, far.id])).keys() == {near.id}
    assert await near.status() is await far.status() is State.PENDING
    assert (await chancy.get_jobs([near.id, far.id])).keys() == {near.id, far.id}
    assert {job.id for job in await chancy.find_jobs(JobFilter())} == {near.id, far.id}
    assert [job.id for job in await chancy.find_jobs(JobFilter(queue="far"))] == [far.id]
    assert {name: one.pending for name, one in (await chancy.counts()).items()} == {
        "async": 1,
        "far": 1,
    }
    assert (await chancy.why(far.id))[0].why is Why.NO_WORKERS


async def test_a_bulk_push_is_taken_apart(chancy: Chancy, two: TwoBrokers) -> None:
    references = await chancy.push_many(note("far" if n % 3 else "async", n) for n in range(4_000))
    counts = await chancy.counts()
    assert (counts["async"].pending, counts["far"].pending) == (1_334, 2_666)
    assert len(references) == 4_000
    order = sorted(two.store.live.values(), key=lambda row: row.position)
    values = [(row.as_job().arguments or {})["value"] for row in order]
    assert values == [n for n in range(4_000) if n % 3]


async def test_the_part_of_each_broker_is_stored_or_not(chancy: Chancy, two: TwoBrokers) -> None:
    two.away = True
    with pytest.raises(BrokerUnavailable):
        await chancy.push_many([note("async", 1), note("far", 2), note("async", 3)])
    assert (await chancy.control.counts())["async"].pending == 2
    assert not two.store.live


async def test_a_queue_that_only_its_row_knows(dsn: str, chancy: Chancy, two: TwoBrokers) -> None:
    async with Chancy(dsn, plugins=[two], pool_size=1) as other:
        await other.push(note("far"))
        await other.push_many([note("far")])
    with Chancy(dsn, plugins=[two], pool_size=1) as other:
        other.sync_push(note("far"))
        other.sync_push_many([note("far"), note("async")])
    assert len(two.store.live) == 4
    assert (await chancy.counts())["async"].pending == 1


async def test_rows_are_looked_at_again(dsn: str, two: TwoBrokers) -> None:
    async with (
        Chancy(dsn, plugins=[two], pool_size=2) as pushing,
        Chancy(dsn, plugins=[two], pool_size=1) as declaring,
    ):
        await pushing.push(note("late"))
        await declaring.declare(Queue(name="late", broker="memory"))
        assert not two.store.live
        await pushing.get_queues()  # as a worker does on the notice
        await pushing.push(note("late"))
        assert len(two.store.live) == 1
    assert FRESH_S <= 5


async def test_cancel_and_run_now_find_the_job(chancy: Chancy) -> None:
    near, far = await chancy.push(note("async")), await chancy.push(note("far"))
    later = await chancy.push(note("far").with_delay(timedelta(seconds=60)))
    assert await chancy.run_now(later.id, near.id) == {later.id}
    assert await chancy.cancel(near.id, far.id) == dict.fromkeys(
        (near.id, far.id), Cancellation.CANCELLED
    )
    assert (await far.wait(30)).state is (await near.wait(30)).state is State.CANCELLED


async def test_sync_calls_find_the_job(dsn: str, chancy: Chancy, two: TwoBrokers) -> None:
    with Chancy(dsn, queues=QUEUES, plugins=[two]) as other:
        near, far = other.sync_push(note("async")), other.sync_push(note("far"))
        found = present(far.sync_get())
        assert found.queue == "far"
        assert near.sync_get() is not None
        await chancy.cancel(near.id, far.id)
        assert far.sync_wait(30).state is near.sync_wait(30).state is State.CANCELLED
        assert other.sync_declare(Queue(name="far2", broker="memory")).broker == "memory"


async def test_missing_capabilities_of_a_broker_are_named_in_the_refusal(
    dsn: str, chancy: Chancy, two: TwoBrokers
) -> None:
    two.offers = frozenset()
    with pytest.raises(PushError, match=r"'far' has the broker 'memory'.*offer unique jobs"):
        await chancy.push(note("far").with_unique(Unique(key="a")))
    with pytest.raises(PushError, match="unique jobs"):
        await chancy.push_many([note("async"), note("far").with_unique(Unique(key="a"))])
    assert await chancy.counts() == {}
    assert not two.store.live


async def test_jobs_of_a_transaction_are_in_postgres_and_run_from_there(
    dsn: str, chancy: Chancy, two: TwoBrokers
) -> None:
    """A broker without adoption leaves them there."""
    async with chancy.transaction() as tx:
        reference = await chancy.push(note("far"), within=tx)
        [more] = await chancy.push_many([note("far")], within=tx)
        assert await chancy.get_job(reference.id) is None

    def push() -> UUID:
        with (
            Chancy(dsn, queues=QUEUES, plugins=[two]) as other,
            psycopg.connect(dsn) as connection,
        ):
            return other.sync_push(note("far"), within=connection).id

    third = await asyncio.to_thread(push)
    assert (await chancy.counts())["far"].pending == 3
    assert not two.store.live
    async with Worker(chancy):
        for id in (reference.id, more.id, third):
            assert (await chancy.wait_for(id, 30)).state is State.SUCCEEDED


async def test_a_queue_of_an_unknown_broker_is_refused(
    dsn: str, chancy: Chancy, two: TwoBrokers
) -> None:
    far = Queue(name="x", broker="redis")
    for plugins in ([], [two]):
        with pytest.raises(ConfigurationError, match=r"'x' has the broker 'redis'.*supplies"):
            Chancy(dsn, queues=[far], plugins=plugins)
    with pytest.raises(ConfigurationError, match="available: memory, postgres"):
        await chancy.declare(far)
    with pytest.raises(ConfigurationError, match="option shards alone"):
        await chancy.declare(Queue(name="x", broker="memory", broker_options={"no": 1}))
    kept = await chancy.declare(Queue(name="x", broker="memory", broker_options={"shards": 2}))
    assert (await chancy.get_queues())[-1] == kept
    assert kept.broker_options == {"shards": 2}


async def test_a_queue_leaves_its_broker_only_without_jobs(dsn: str, chancy: Chancy) -> None:
    far = await chancy.push(note("far"))
    moved = Queue(name="far", executor="async")
    with pytest.raises(ConfigurationError, match="'memory' with 1 unfinished jobs"):
        await chancy.declare(moved, upsert=True)
    async with Chancy(dsn, pool_size=1) as without:
        with pytest.raises(ConfigurationError, match="'memory', which no plugin of this appl"):
            await without.declare(moved, upsert=True)
    with Chancy(dsn) as blocking, pytest.raises(ConfigurationError, match="no plugin of this"):
        blocking.sync_declare(moved, upsert=True)
    await chancy.cancel(far.id)
    assert (await chancy.declare(moved, upsert=True)).broker == "postgres"
    await chancy.push(note("far"))
    # What waits in Postgres is run there, wherever the queue lives.
    assert (await chancy.declare(QUEUES[1], upsert=True)).broker == "memory"


@pytest.mark.parametrize(("plugins", "upsert"), [(0, True), (1, False), (1, True)])
async def test_declaring_a_queue_reads_no_other_queue(
    dsn: str, two: TwoBrokers, monkeypatch: pytest.MonkeyPatch, plugins: int, upsert: bool
) -> None:
    read: list[str] = []
    queues = PostgresBroker.queues

    async def recorded(broker: PostgresBroker, *names: str) -> Sequence[Queue]:
        found = await queues(broker, *names)
        read.extend(queue.name for queue in found)
        return found

    monkeypatch.setattr(PostgresBroker, "queues", recorded)
    names = [f"q{number}" for number in range(20)]
    async with Chancy(dsn, plugins=[two][:plugins], pool_size=1) as chancy:
        for name in names * 2:
            await chancy.declare(Queue(name=name), upsert=upsert)
    assert read == names, "each once it exists"


@pytest.mark.parametrize("upsert", [False, True])
async def test_a_deleted_queue_returns_to_the_broker_that_has_jobs_of_it(
    chancy: Chancy, two: TwoBrokers, upsert: bool
) -> None:
    far = await chancy.push(note("far"))
    moved = Queue(name="far", executor="async")
    assert await chancy.delete_queue("far")
    with pytest.raises(ConfigurationError, match="'memory' with 1 unfinished jobs"):
        await chancy.declare(moved, upsert=upsert)
    assert "far" not in {queue.name for queue in await chancy.get_queues()}
    two.away = True
    await chancy.declare(Queue(name="new"), upsert=upsert)
    two.away = False
    assert (await chancy.declare(QUEUES[1], upsert=upsert)).broker == "memory"
    assert await chancy.delete_queue("far")
    await chancy.cancel(far.id)
    assert (await chancy.declare(moved, upsert=upsert)).broker == "postgres"


async def test_the_outage_of_one_broker_leaves_the_other(chancy: Chancy, two: TwoBrokers) -> None:
    near = await chancy.push(note("async"))
    two.away = True
    assert await near.status() is State.PENDING
    assert (await chancy.counts())["async"].pending == 1
    assert len(await chancy.find_jobs(JobFilter())) == 1
    with pytest.raises(BrokerUnavailable):
        await chancy.push(note("far"))
    assert await chancy.cancel(near.id) == {near.id: Cancellation.CANCELLED}
    assert (await near.wait(30)).state is State.CANCELLED


async def test_an_application_opens_while_a_broker_is_unavailable(
    dsn: str, two: TwoBrokers
) -> None:
    two.away = True
    async with Chancy(dsn, queues=QUEUES, plugins=[two], pool_size=2) as chancy:
        await chancy.push(note("async"))
        with pytest.raises(BrokerUnavailable):
            await chancy.push(note("far"))
        two.away = False
        far = await chancy.push(note("far"))
        assert await far.status() is State.PENDING
