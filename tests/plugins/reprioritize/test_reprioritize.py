"""Jobs that wait gain priority by age: exactly, once, and workers see it at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Queue, Worker
from chancy.broker.notices import Notice, NoticeKind
from chancy.broker.optional import SqlStore
from chancy.broker.values import WorkerRecord
from chancy.clock import SystemClock
from chancy.job.ids import new_id
from chancy.plugins.leadership import ImmediateLeadership
from chancy.plugins.reprioritize import Aging, Reprioritize
from chancy.postgres.broker import PostgresBroker
from tests.support import jobs
from tests.support.waiting import eventually

MINUTE = timedelta(minutes=1)
FILL = """
insert into chancy.jobs (id, pos, state, queue, priority, func, arguments, run_at, pushed_at, meta)
select gen_random_uuid(), nextval('chancy.positions'), %(state)s, %(queue)s, %(priority)s,
  %(func)s, '{}', %(run_at)s, now() - %(age)s, %(meta)s
from generate_series(1, %(count)s) as n
"""


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[PostgresBroker]:
    async with Chancy(dsn, plugins=[Reprioritize(rules=[Aging(every=MINUTE)])]) as chancy:
        assert isinstance(chancy.broker, PostgresBroker)
        yield chancy.broker


def fill(
    connection: psycopg.Connection[Any],
    age: timedelta,
    *,
    count: int = 1,
    priority: int = 0,
    queue: str = "default",
    func: str = "shop.jobs.sell",
    state: int = 0,
    due: timedelta | None = None,
    meta: str | None = None,
) -> None:
    """Jobs that were pushed so long ago, and became due so long ago if that was later."""
    values = {
        "count": count, "age": age, "priority": priority, "queue": queue, "func": func,
        "state": state, "meta": meta, "run_at": None,
    }  # fmt: skip
    if due is not None:
        row = connection.execute("select now() - %s", (due,)).fetchone()
        values["run_at"] = row[0] if row else None
    connection.execute(FILL.encode(), values)


def priorities(connection: psycopg.Connection[Any]) -> list[int]:
    rows = connection.execute("select priority from chancy.jobs order by pos").fetchall()
    return [priority for (priority,) in rows]


async def apply(store: SqlStore, *rules: Aging) -> int:
    return await Reprioritize(rules=rules).raise_all(store, SystemClock())


@pytest.mark.parametrize(
    ("ages", "rule", "expected"),
    [
        ([0.5, 1.5, 3.1], Aging(every=MINUTE), [0, 1, 3]),
        ([0.5, 1.5, 3.1], Aging(every=MINUTE, by=7), [0, 7, 21]),
        ([0.5, 1.5, 300], Aging(every=MINUTE, by=7, up_to=10), [0, 7, 10]),
        ([300, 1e6], Aging(every=MINUTE), [100, 100]),
        ([5], Aging(every=MINUTE, up_to=-5), [0]),
    ],
)
async def test_the_priority_follows_from_the_age(
    ages: list[float],
    rule: Aging,
    expected: list[int],
    broker: PostgresBroker,
    connection: psycopg.Connection[Any],
) -> None:
    for age in ages:
        fill(connection, MINUTE * age)
    raised = sum(1 for priority in expected if priority)
    assert await apply(broker, rule) == raised
    assert priorities(connection) == expected
    # Doing it again changes nothing, however often.
    assert await apply(broker, rule) == 0
    assert priorities(connection) == expected


async def test_it_adds_to_what_the_job_was_pushed_with(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    for priority in (-100, -3, 40, 99, 100):
        fill(connection, MINUTE * 2.5, priority=priority, meta='{"mine": 1}')
    await apply(broker, Aging(every=MINUTE, by=2, up_to=50))
    assert priorities(connection) == [-96, 1, 44, 99, 100]
    # Two periods later: from the first priority again, not from what it has become.
    connection.execute("update chancy.jobs set pushed_at = pushed_at - interval '2 min'")
    await apply(broker, Aging(every=MINUTE, by=2, up_to=50))
    assert priorities(connection) == [-92, 5, 48, 99, 100]
    metas = connection.execute("select meta from chancy.jobs order by pos").fetchall()
    assert metas[0] == ({"mine": 1, "reprioritize": {"from": -100, "to": -92}},)
    assert metas[3] == ({"mine": 1},)


async def test_the_age_counts_from_the_time_at_which_a_job_became_due(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, MINUTE * 60, due=MINUTE * 2.5)  # delayed, or retried
    fill(connection, MINUTE * 2.5, due=timedelta(days=365))  # pushed for a moment in the past
    fill(connection, MINUTE * 60, due=-MINUTE)  # released before its time
    fill(connection, MINUTE * 60, state=2, due=-MINUTE * 60)  # not due yet
    fill(connection, MINUTE * 60, state=1)  # runs
    await apply(broker, Aging(every=MINUTE))
    assert priorities(connection) == [2, 2, 0, 0, 0]


async def test_a_rule_raises_only_matching_jobs(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    age = MINUTE * 9.5
    fill(connection, age, queue="reports")
    fill(connection, age, queue="reports", func="shop_jobs.sell")
    fill(connection, age, queue="mail.x", func="shop.jobs.buy")
    fill(connection, age, queue="other")
    assert await apply(broker, Aging(every=MINUTE, queue="rep*", func="shop.*")) == 1
    assert priorities(connection) == [9, 0, 0, 0]
    assert await apply(broker, Aging(every=MINUTE, func="shop.jobs.b?y", up_to=3)) == 1
    assert priorities(connection) == [9, 0, 3, 0]
    # Of several rules the one that gives the most counts, in whatever order they stand.
    rules = [Aging(every=MINUTE, queue="other", by=b) for b in (2, 5, 3)]
    await apply(broker, *rules)
    assert await apply(broker, *rules) == 0
    assert priorities(connection) == [9, 0, 3, 45]


async def test_a_priority_that_was_set_otherwise_counts_as_the_first_one(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, MINUTE * 3.5)
    await apply(broker, Aging(every=MINUTE))
    assert priorities(connection) == [3]
    connection.execute("update chancy.jobs set priority = -50")
    await apply(broker, Aging(every=MINUTE))
    assert priorities(connection) == [-47]
    # One that went back to be retried keeps what it has gained; its age begins anew.
    connection.execute(
        "update chancy.jobs set run_at = now() - interval '2.5 min', "
        "pushed_at = now() - interval '1 h'"
    )
    assert await apply(broker, Aging(every=MINUTE)) == 0
    connection.execute("update chancy.jobs set run_at = now() - interval '4.5 min'")
    assert await apply(broker, Aging(every=MINUTE)) == 1
    assert priorities(connection) == [-46]


@pytest.mark.parametrize(
    "meta",
    ["[1]", '"x"', "null", "7", '{"reprioritize": 1}', '{"reprioritize": {"to": 0, "from": "x"}}',
     '{"reprioritize": {"to": 0, "from": 1e300}}', '{"reprioritize": {"to": 0, "from": [0]}}'],
)  # fmt: skip
async def test_a_row_may_hold_anything(
    meta: str, broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, MINUTE * 3.5, meta=meta)
    fill(connection, MINUTE * 3.5)
    connection.execute(
        "insert into chancy.jobs (id, pos, state, queue, func, pushed_at, run_at) values "
        "(gen_random_uuid(), 900, 0, 'default', 'a.b', '-infinity', null),"
        "(gen_random_uuid(), 901, 0, 'default', 'a.b', now(), 'infinity')"
    )
    await apply(broker, Aging(every=MINUTE))
    assert priorities(connection) == [3, 3, 100, 0]


async def test_jobs_keep_their_order_among_those_of_one_priority(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    """Their positions stay: of one priority the one that waited first is claimed first."""
    draw = random.Random(7)
    for _ in range(300):
        fill(connection, MINUTE * draw.uniform(0, 6), priority=draw.randint(-2, 2))
    before = connection.execute("select id, pos from chancy.jobs order by pos").fetchall()
    await apply(broker, Aging(every=MINUTE))
    assert connection.execute("select id, pos from chancy.jobs order by pos").fetchall() == before
    id = new_id()
    await broker.register(
        WorkerRecord(id=id, host="h", pid=1, tags=frozenset(), queues=(), version="")
    )
    claims = await broker.claim("default", worker_id=id, limit=300)
    order = [(-claim.priority, claim.position) for claim in claims]
    assert len(order) == 300
    for lane in {-claim.priority for claim in claims}:
        positions = [position for its, position in order if its == lane]
        assert positions == sorted(positions)


async def test_concurrent_raises_and_a_claim_run_each_job_once(
    broker: PostgresBroker, connection: psycopg.Connection[Any]
) -> None:
    fill(connection, MINUTE * 5.5, count=4000)
    id = new_id()
    await broker.register(
        WorkerRecord(id=id, host="h", pid=1, tags=frozenset(), queues=(), version="")
    )
    claimed: list[Any] = []

    async def claim() -> None:
        while found := await broker.claim("default", worker_id=id, limit=50, thorough=True):
            claimed.extend(found)
            await asyncio.sleep(0)

    rule = Aging(every=MINUTE)
    *raised, _ = await asyncio.gather(
        apply(broker, rule), apply(broker, rule), apply(broker, rule), claim()
    )
    while len(claimed) < 4000:
        await claim()
    assert len({one.id for one in claimed}) == len(claimed) == 4000
    assert {one.priority for one in claimed} <= {0, 5}
    # None was raised twice, and none that runs.
    assert 0 < sum(raised) == sum(one.priority == 5 for one in claimed)


@pytest.mark.parametrize(("count", "notices"), [(1, 1), (2500, 2)])
async def test_the_workers_of_the_queue_are_notified_to_look_from_the_front(
    count: int,
    notices: int,
    broker: PostgresBroker,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chancy.plugins.reprioritize._NOTIFY_S", 1e9)
    fill(connection, MINUTE * 3.5, count=count, queue="reports")
    fill(connection, MINUTE / 2, queue="other")
    subscription = await broker.subscribe()
    try:
        assert await apply(broker, Aging(every=MINUTE)) == count
        heard = await subscription.receive(5.0)
        heard += await subscription.probe(5.0)
    finally:
        await subscription.close()
    # One at once and one at the end, and not one for each step: each makes a worker look over
    # everything that was claimed of late.
    rewinds = [one for one in heard if one.kind is NoticeKind.REWIND]
    assert set(rewinds) == {Notice(NoticeKind.REWIND, "reports")}
    assert len(rewinds) == notices


async def test_a_worker_runs_what_was_raised_next(
    dsn: str, connection: psycopg.Connection[Any]
) -> None:
    """Its hints are behind the old job by then, and it knows no lane of that priority."""
    jobs.noted.clear()
    jobs.started.clear()
    plugin = Reprioritize(rules=[Aging(every=MINUTE, by=9)], every_s=0.05)
    queue = Queue(name="async", executor="async", concurrency=1)
    chancy = Chancy(dsn, queues=[queue], plugins=[ImmediateLeadership(), plugin])
    await chancy.migrate()
    async with chancy:
        await chancy.push_many(jobs.nap.job.with_priority(5)(seconds=0.03) for _ in range(150))
        old = await chancy.push(jobs.note.job(value="old"))
        # `poll_interval_s` and looks from the front would find it too, later.
        async with Worker(chancy, queues=["async"]):
            await eventually(lambda: len(jobs.noted) >= 10)
            with connection.transaction():
                before = len(jobs.noted)
                connection.execute(
                    "update chancy.jobs set pushed_at = now() - interval '5.5 min' where id = %s",
                    (old.id,),
                )
            done = await old.wait(10)
            assert done.priority == 45
            assert done.meta["reprioritize"] == {"from": 0, "to": 45}
            # Those that it had claimed before, a batch ahead at most, and a few while it looked.
            assert "old" in jobs.noted[before : before + 60]
