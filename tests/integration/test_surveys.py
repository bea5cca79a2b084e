"""What a survey finds, and that workers run what no notification has told them of."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.optional import Survey
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import Name
from chancy.testing.conformance.bench import Bench, prepared, record, settlement
from chancy.worker.crowd import Crowd
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually

WITHOUT_NOTICE = """
insert into chancy.jobs (id, pos, state, queue, func, arguments)
values (gen_random_uuid(), nextval('chancy.positions'), 0, %s, 'tests.support.jobs.note', %s)
"""
#: Rows of workers that have just died: they serve the queues, and claim nothing.
DEAD = """
insert into chancy.workers (id, host, pid, queues)
select gen_random_uuid(), 'gone', n, array['async'] from generate_series(1, %s) as n
"""


@pytest.fixture
async def bench(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Bench]:
    driver: Name = getattr(request, "param", "asyncpg")
    broker = PostgresBroker(dsn, driver=driver)
    await broker.open()
    made = Bench(broker)
    await made.prepare()
    await made.broker.announce(made.worker_id, ["default", "other", "unused"], {})
    yield made
    await broker.close()


async def survey(
    bench: Bench, occupied: Sequence[str] = (), worker_id: uuid.UUID | None = None
) -> Survey:
    assert isinstance(bench.broker, PostgresBroker)
    return await bench.broker.survey(worker_id or bench.worker_id, occupied)


@pytest.mark.parametrize("bench", ["asyncpg", "psycopg"], indirect=True)
async def test_survey_finds_the_queues_of_a_worker_with_jobs_to_claim(bench: Bench) -> None:
    assert (await survey(bench)).waiting == []
    names = ("a", "other", "default", "default", "z")
    await bench.push(*(prepared(queue=name) for name in names), prepared(queue="unused", delay_s=9))
    assert sorted((await survey(bench)).waiting) == ["default", "other"]
    assert len(await bench.claim()) == 2
    assert (await survey(bench)).waiting == ["other"]


async def test_survey_finds_queues_among_many_others_with_jobs(bench: Bench) -> None:
    await bench.push(*(prepared(queue=f"foreign{n}") for n in range(50)), prepared(queue="unused"))
    assert (await survey(bench)).waiting == ["unused"]


async def test_survey_leaves_paused_queues_out(bench: Bench) -> None:
    await bench.push(prepared())
    await bench.broker.pause("default")
    assert (await survey(bench)).waiting == []
    await bench.broker.pause("default", resume_at=datetime.now(UTC) - timedelta(seconds=9))
    assert (await survey(bench)).waiting == ["default"]


async def test_survey_finds_jobs_that_were_set_aside(bench: Bench) -> None:
    [claim] = await bench.running()
    aside: Settlement = settlement(claim, State.HELD)._replace(meta='{"unknown_function": true}')
    await bench.settle(aside)
    assert (await survey(bench)).waiting == ["default"]


async def test_survey_finds_running_jobs_that_were_asked_to_stop(bench: Bench) -> None:
    [claim, _] = await bench.running(prepared(), prepared())
    assert (await survey(bench)).stopping == []
    await bench.broker.cancel([claim.id])
    assert (await survey(bench)).stopping == [claim.id]


async def test_survey_counts_the_workers_that_serve_the_same_queues(bench: Bench, dsn: str) -> None:
    others = [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]
    for other in others:
        await bench.broker.register(record(other))
        await bench.broker.announce(other, ["default", "other", "unused"], {})
    different = uuid.uuid4()
    await bench.broker.register(record(different))
    await bench.broker.announce(different, ["default"], {})
    found = [await survey(bench, worker_id=one) for one in (bench.worker_id, *others, different)]
    assert [(one.place, one.crowd) for one in found] == [(1, 3), (0, 3), (2, 3), (0, 1)]
    ask(
        dsn,
        "update chancy.workers set beat_at = now() - interval '16 s' where id = %s",
        [others[0]],
    )
    found = [await survey(bench, worker_id=one) for one in (bench.worker_id, others[1])]
    assert [(one.place, one.crowd) for one in found] == [(0, 2), (1, 2)]


async def test_survey_of_a_worker_that_is_not_registered_finds_nothing(bench: Bench) -> None:
    await bench.push(prepared())
    found = await survey(bench, worker_id=uuid.uuid4())
    assert (found.waiting, found.place, found.crowd, found.full) == ([], 0, 0, {})


async def test_survey_gives_the_share_of_workers_without_room(bench: Bench) -> None:
    assert (await survey(bench, ["other"])).full == {"other": 1.0}
    second = uuid.uuid4()
    await bench.broker.register(record(second))
    await bench.broker.announce(second, ["default", "other", "unused"], {})
    assert (await survey(bench, ["default"], second)).full == {"default": 0.5, "other": 0.5}
    assert (await survey(bench, [])).full == {"default": 0.5}


async def test_version_of_the_queues_changes_with_each_change(bench: Bench) -> None:
    broker = bench.broker

    async def version() -> str:
        return (await survey(bench)).queues_version

    seen = [await version(), await version()]
    assert seen[0] == seen[1]
    await broker.declare(Queue(name="later"))
    seen.append(await version())
    await broker.declare(Queue(name="later", executor="thread"), upsert=True)
    seen.append(await version())
    await broker.pause("later")
    seen.append(await version())
    await broker.resume("later")
    seen.append(await version())
    await broker.delete_queue("later")
    seen.append(await version())
    assert all(before != after for before, after in itertools.pairwise(seen[1:]))


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    queue = Queue(name="async", executor="async", poll_interval_s=0.05)
    async with Chancy(dsn, queues=[queue], no_default_plugins=True) as made:
        await made.delete_queue("default")
        yield made


def without_notice(connection: psycopg.Connection[Any], queue: str, value: str) -> None:
    connection.execute(WITHOUT_NOTICE.encode(), (queue, f'{{"value": "{value}"}}'))


def at_rest(worker: Worker) -> bool:
    return all(one.puller.resting for one in worker._queue_set._serving.values())


async def test_job_whose_notification_was_lost_is_found_by_a_survey(
    chancy: Chancy, dsn: str
) -> None:
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening and at_rest(worker))
        with psycopg.connect(dsn, autocommit=True) as connection:
            without_notice(connection, "async", "lost")
        await eventually(lambda: jobs.noted == ["lost"])


async def test_jobs_run_while_every_other_worker_is_dead(chancy: Chancy, dsn: str) -> None:
    """Most notifications choose workers that are not there any more."""
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening and at_rest(worker))
        ask(dsn, DEAD, (40,))
        await eventually(lambda: worker._control.crowd.size == 41)
        for number in range(10):
            await chancy.push(jobs.note.job(value=number))
        await eventually(lambda: set(jobs.noted) == set(range(10)))


async def test_queue_that_is_declared_later_is_surveyed(chancy: Chancy, dsn: str) -> None:
    async with Worker(chancy, queues=["*"]) as worker:
        await eventually(lambda: worker.listening and at_rest(worker))
        await chancy.declare(Queue(name="later", executor="async"))
        await eventually(lambda: worker.queues == ("async", "later") and at_rest(worker))
        with psycopg.connect(dsn, autocommit=True) as connection:
            without_notice(connection, "later", "there")
        await eventually(lambda: jobs.noted == ["there"])


async def test_one_of_many_workers_claims_for_a_push(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of them without one."""
    asked: list[float | None] = []
    delay_s = Crowd.delay_s

    def recorded(crowd: Crowd, notice: Any) -> float | None:
        asked.append(delay_s(crowd, notice))
        return asked[-1]

    monkeypatch.setattr(Crowd, "delay_s", recorded)
    monkeypatch.setattr(Crowd, "suppress_s", lambda crowd, notice: 0.0)
    queue = Queue(name="async", executor="async", poll_interval_s=3_600)
    async with Chancy(dsn, queues=[queue], no_default_plugins=True) as chancy:
        await chancy.delete_queue("default")
        async with Worker(chancy) as worker:
            await eventually(lambda: worker.listening and at_rest(worker))
            ask(dsn, DEAD, (40,))
            survey = await worker._control.broker.survey(worker.worker_id, ())  # type: ignore[attr-defined]
            worker._control.crowd.learn(survey)
            for number in range(20):
                await chancy.push(jobs.note.job(value=number))
            await eventually(lambda: len(asked) == 20)
            assert asked.count(None) > 10


async def test_push_makes_five_claims_of_many_workers_at_most(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[str] = []
    asked: list[float | None] = []
    claim, delay_s = PostgresBroker.claim, Crowd.delay_s

    one_by_one = asyncio.Lock()

    async def counted(broker: PostgresBroker, queue: str, **options: Any) -> Sequence[Claim]:
        claims.append(queue)
        async with one_by_one:  # the first one gets the job, not that of a spare worker
            return await claim(broker, queue, **options)

    def recorded(crowd: Crowd, notice: Any) -> float | None:
        asked.append(delay_s(crowd, notice))
        return asked[-1]

    monkeypatch.setattr(PostgresBroker, "claim", counted)
    monkeypatch.setattr(Crowd, "delay_s", recorded)
    # A busy server notifies one worker after the other: spare ones come later.
    monkeypatch.setattr("chancy.worker.crowd._SPARE_S", 0.1)
    queue = Queue(name="async", executor="async", poll_interval_s=3_600)
    async with (
        Chancy(dsn, queues=[queue], no_default_plugins=True) as chancy,
        AsyncExitStack() as on,
    ):
        await chancy.delete_queue("default")
        workers = [await on.enter_async_context(Worker(chancy)) for _ in range(8)]

        def idle() -> bool:
            pullers = [
                one.puller for worker in workers for one in worker._queue_set._serving.values()
            ]
            return all(one.resting and one._spare is None for one in pullers)

        await eventually(lambda: idle() and all(worker.listening for worker in workers))
        for worker in workers:
            survey = await worker._control.broker.survey(worker.worker_id, ())  # type: ignore[attr-defined]
            worker._control.crowd.learn(survey)
        for number in range(3):
            before = len(claims)
            await chancy.push(jobs.note.job(value=number))
            await eventually(lambda: len(asked) == 8 * (number + 1) and idle())  # noqa: B023
            assert 1 <= len(claims) - before <= 5
