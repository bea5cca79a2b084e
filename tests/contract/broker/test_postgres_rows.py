"""What the contract cannot say of every broker: rows that somebody else wrote, positions at the
end of their range, and producers that commit late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from chancy.attempt.failure import Failure
from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.broker.values import JobFilter
from chancy.job.limits import Limit
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import Name as DriverName
from chancy.queue.executor_options import ProcessOptions
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.support.sql import ask


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> DriverName:
    """Both where they read what no statement of ours writes; asyncpg elsewhere."""
    found: DriverName = getattr(request, "param", "asyncpg")
    return found


@pytest.fixture
async def broker(driver: DriverName, dsn: str) -> AsyncIterator[PostgresBroker]:
    broker = PostgresBroker(dsn, driver=driver)
    await broker.open()
    yield broker
    await broker.close()


@pytest.fixture
async def bench(broker: PostgresBroker) -> Bench:
    bench = Bench(broker)
    await bench.prepare()
    return bench


async def test_a_caller_that_gives_up_leaves_the_notices_of_others(
    broker: PostgresBroker, bench: Bench, dsn: str
) -> None:
    [claim] = await bench.running()
    subscription = await broker.subscribe(Topic.FINISHED)
    await subscription.probe(30.0)
    for _ in range(2):
        await broker.watch([claim.id])
    await broker.unwatch([claim.id])
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert Notice(NoticeKind.FINISHED, str(claim.id)) in await subscription.receive(30.0)
    await subscription.close()
    await broker.unwatch([claim.id])
    assert ask(dsn, "select from chancy.awaited") == []


def alter(dsn: str, job_id: UUID, assignment: str) -> None:
    with psycopg.connect(dsn) as connection:
        changed = connection.execute(
            f"update chancy.jobs set {assignment} where id = %s".encode(),
            [job_id],
        )
        assert changed.rowcount == 1


async def test_a_worker_with_an_infinite_heartbeat(
    broker: PostgresBroker, bench: Bench, dsn: str
) -> None:
    [claim] = await bench.running()
    for beat_at, age_s, dead in (("infinity", 0.0, 0), ("-infinity", 1e9, 1)):
        ask(dsn, f"update chancy.workers set beat_at = '{beat_at}'")
        assert [worker.heartbeat_age_s for worker in await broker.workers()] == [age_s]
        assert len(await broker.workers(heartbeat_age_s=15.0)) == dead
    assert [one.id for one in await broker.orphans(heartbeat_age_s=15.0, limit=9)] == [claim.id]
    assert await broker.workers() == []


async def test_locked_orphans_hide_no_others(
    broker: PostgresBroker, bench: Bench, dsn: str
) -> None:
    claims = await bench.running(prepared(), prepared())
    ask(dsn, "update chancy.workers set beat_at = '-infinity'")
    with psycopg.connect(dsn) as other:
        for claim in claims:
            other.execute("select from chancy.jobs where id = %s for update", [claim.id])
            found = await broker.orphans(heartbeat_age_s=15.0, limit=1)
            assert [one.id for one in found] == [one.id for one in claims if one != claim]
            other.rollback()


#: What hands may do to a row without being refused.
ODD_ROWS = [
    "arguments = null",
    "arguments = 'null'",
    "arguments = '[1, 2]'",
    "arguments = '\"text\"'",
    "arguments = '{\"n\": 1e400}'",
    "meta = '[]'",
    "meta = '5'",
    "meta = 'null'",
    "errors = '{}'",
    "errors = 'null'",
    "errors = '[1, null, \"x\", [], {}]'",
    "func = ''",
    "func = repeat('x', 100000)",
    "func = E'\\x1b[31m'",
    "attempt = 2147483647",
    "attempt = -5",
    "max_attempts = -1",
    "crashes = 32767",
    "crashes = -1",
    "priority = 32767",
    "priority = -32768",
    "pos = 9223372036854775807",
    "pos = -9223372036854775807",
    "run_at = 'infinity'",
    "run_at = '-infinity'",
    "run_at = '20000-01-01'",
    "run_at = '4000-01-01 BC'",
    "run_at = null",
    "pushed_at = 'infinity'",
    "lease = '00000000-0000-0000-0000-000000000000'",
    "worker_id = '00000000-0000-0000-0000-000000000000'",
    "limits = '\"x\"'",
    "limits = '[]'",
    "limits = 'null'",
    'limits = \'{"time_s": "x", "more": {}}\'',
    "limits = '{\"time_s\": 1e400}'",
]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"], indirect=True)
async def test_an_odd_row_holds_up_none_of_its_neighbours(broker: PostgresBroker, dsn: str) -> None:
    for assignment in ODD_ROWS:
        # Each time another worker, since the last one is declared dead.
        await (bench := Bench(broker)).prepare()
        await _is_passed_by(bench, dsn, assignment)


async def _is_passed_by(bench: Bench, dsn: str, assignment: str) -> None:
    before, odd, after = ids = await bench.push(prepared(), prepared(), prepared())
    alter(dsn, odd, assignment)
    assert set(await bench.broker.get(ids)) == {*ids}, assignment
    live = JobFilter(states=frozenset({State.PENDING, State.SCHEDULED}))
    assert {job.id for job in await bench.broker.find(live)} == {*ids}, assignment
    claims = {claim.id: claim for claim in await bench.claim()}
    assert {before, after} <= set(claims), assignment
    back = [
        settlement(claim, State.PENDING)._replace(
            crashed=True, refund=True, meta='{"a": 1}', failure=Failure.named("shop.Oops", "oops")
        )
        for claim in claims.values()
    ]
    assert await bench.settle(*back) == frozenset(), assignment
    assert {before, after} <= {claim.id for claim in await bench.claim()}, assignment
    orphans = await bench.broker.orphans(heartbeat_age_s=-1.0, limit=10)
    assert {before, after} <= {claim.id for claim in orphans}, assignment
    ending = [
        settlement(claim, State.FAILED)._replace(
            crashed=True, failure=Failure.named("chancy.Lost", "gone")
        )
        for claim in orphans
    ]
    assert await bench.settle(*ending) == frozenset(), assignment
    found = await bench.broker.get(ids)
    assert [found[job_id].state for job_id in ids] == [State.FAILED] * 3, assignment


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"], indirect=True)
async def test_an_odd_queue_holds_up_none_of_its_neighbours(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.broker.pause("default")
    for queue in ("executor = 'x'", "tags = '{(}'", "poll_interval_s = 'nan'"):
        with psycopg.connect(dsn) as connection:
            connection.execute("delete from chancy.queues where name = 'odd'")
            connection.execute("insert into chancy.queues (name) values ('odd')")
            connection.execute(f"update chancy.queues set {queue} where name = 'odd'".encode())
        caplog.clear()
        assert [(q.name, q.paused) for q in await bench.broker.queues()] == [
            ("default", True),
            ("odd", False),
        ], queue
        assert "queue_row_invalid" in caplog.text, queue


#: What somebody writes into the row of a queue, what the queue is then, and what is said.
ODD_QUEUES = {
    "tags-in-tags": ("tags = '{{a,b},{c,d}}'", (), None, "tags must be strings"),
    "limits-no-object": ("limits = '[]'", (), None, "the limits are not a JSON object"),
    "limits-null": ("limits = 'null'", (), None, "the limits are not a JSON object"),
    "limits-unknown": ("limits = '{\"cpu_s\": 5}'", (), None, "there is no limit 'cpu_s'"),
    "limits-one-bad": (
        'limits = \'{"time_s": 5, "memory_bytes": "1G"}\'',
        (Limit.time(5),),
        None,
        "a limit of memory must be from",
    ),
    "limits-one-unknown": (
        'limits = \'{"cpu_s": 5, "memory_bytes": 1e9, "time_s": null}\'',
        (Limit.memory(10**9),),
        None,
        "there is no limit 'cpu_s'",
    ),
    "limits-one-not-for-it": (
        "executor = 'async', limits = '{\"memory_bytes\": 1e9, \"time_s\": 5}'",
        (Limit.time(5),),
        None,
        "so they take no memory limit",
    ),
    "limits-endless": ("limits = '{\"time_s\": 1e400}'", (), None, "a limit of time must be from"),
    "limits-of-a-thread": (
        "executor = 'thread', limits = '{\"time_s\": 5}'",
        (),
        None,
        "a thread cannot be stopped",
    ),
    "limits-of-a-loop": (
        "executor = 'async', limits = '{\"memory_bytes\": 1e9}'",
        (),
        None,
        "so they take no memory limit",
    ),
    "options-no-object": ("options = '5'", (), None, "the options are not a JSON object"),
    "options-unknown": ("options = '{\"x\": 1}'", (), None, "has the options max_jobs"),
    "options-of-another": (
        "executor = 'async', options = '{\"max_jobs\": 5}'",
        (),
        None,
        "the executor async has the options grace_s, not 'max_jobs'",
    ),
    "options-bad": ("options = '{\"max_jobs\": 0}'", (), None, "max_jobs=0 must be"),
    "options-endless": (
        "options = '{\"grace_s\": 1e400}'",
        (),
        None,
        "must be a number from 0 to 3,600",
    ),
    "options-bad-limits-good": (
        "options = '{\"max_jobs\": 0}', limits = '{\"time_s\": 5}'",
        (Limit.time(5),),
        None,
        "max_jobs=0 must be",
    ),
    "limits-bad-options-good": (
        "options = '{\"max_jobs\": 9}', limits = '5'",
        (),
        ProcessOptions(max_jobs=9),
        "the limits are not a JSON object",
    ),
    "executor-unknown": (
        "executor = 'x', options = '{\"max_jobs\": 9}', limits = '{\"memory_bytes\": 1e9}'",
        (Limit.memory(10**9),),
        None,
        "there is no executor 'x' here",
    ),
}


async def test_invalid_limits_and_options_are_logged_and_ignored(
    bench: Bench, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    for what, (assignment, limits, options, said) in ODD_QUEUES.items():
        with psycopg.connect(dsn) as connection:
            connection.execute("delete from chancy.queues where name = 'odd'")
            connection.execute("insert into chancy.queues (name) values ('odd')")
            connection.execute(f"update chancy.queues set {assignment} where name = 'odd'".encode())
        caplog.clear()
        _, odd = await bench.broker.queues()
        assert (odd.name, odd.limits, odd.options) == ("odd", limits, options), what
        assert said in caplog.text, what


async def test_an_odd_word_on_what_is_broken_hides_no_worker(bench: Bench, dsn: str) -> None:
    for broken in ('\'{"odd": 5, "mail": "why"}\'', "'[]'", "'5'", "'null'"):
        ask(dsn, f"update chancy.workers set broken = {broken}")
        [worker] = await bench.broker.workers()
        assert worker.broken == ({"odd": "5", "mail": "why"} if "odd" in broken else {}), broken


@pytest.mark.parametrize("start", [2**31 - 3, 2**53 - 3, 2**63 - 12])
async def test_positions_of_any_size_keep_their_order(bench: Bench, dsn: str, start: int) -> None:
    ask(dsn, "select setval('chancy.positions', %s)", [start])
    ids = await bench.push(*(prepared() for _ in range(6)))
    first = await bench.claim(limit=3, thorough=False)
    await bench.settle(settlement(first[1], State.PENDING))
    rest = await bench.claim()
    assert [claim.id for claim in first] == ids[:3]
    assert [claim.id for claim in rest] == [ids[1], *ids[3:]]
    assert [claim.position for claim in first] == [start + 1, start + 2, start + 3]


async def test_positions_that_go_back_hide_no_job(bench: Bench, dsn: str) -> None:
    """A sequence goes back after a fail-over to a server that had not heard of all of it."""
    await bench.push(*(prepared() for _ in range(20)))
    await bench.claim(thorough=False)
    ask(dsn, "select setval('chancy.positions', 3)")
    ids = await bench.push(prepared(), prepared())
    assert [claim.id for claim in await bench.claim(thorough=True)] == ids


async def test_a_producer_that_commits_late_is_not_left_behind(
    bench: Bench, broker: PostgresBroker
) -> None:
    late = prepared()
    async with broker.transaction() as transaction:
        await broker.push([late], within=transaction)
        ids = await bench.push(*(prepared() for _ in range(10)))
        assert [claim.id for claim in await bench.claim(thorough=False)] == ids
        assert await bench.claim(thorough=True) == []
    await bench.push(prepared())
    [straggler, _] = await bench.claim(thorough=True)
    assert straggler.id == late.id
