"""Jobs that conditions select are changed in bulk."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from chancy import Chancy, ChangedJobs, ConfigurationError, Job, JobSelection, Queue, State, Worker
from chancy.app import selection
from chancy.errors import PushError
from chancy.postgres.broker import PostgresBroker
from tests.support.sql import ask
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually, is_in

HOUR = timedelta(hours=1)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    queues = [Queue(name="mail", executor="async"), Queue(name="slow", executor="async")]
    async with Chancy(dsn, queues=queues, allow=["shop.*"]) as made:
        for queue in queues:
            await made.declare(queue)
        yield made


async def pushed(chancy: Chancy, count: int, queue: str = "mail", **fields: object) -> list[UUID]:
    """Push jobs with the number of each as an argument."""
    made = [
        Job(func="shop.send", queue=queue, arguments={"n": n, "to": {"city": f"c{n % 2}"}} | fields)
        for n in range(count)
    ]
    return [one.id for one in await chancy.push_many(made, validate=False)]


async def states(chancy: Chancy, ids: list[UUID]) -> list[State]:
    found = await chancy.get_jobs(ids)
    return [found[id].state for id in ids]


async def test_each_condition_selects(chancy: Chancy, dsn: str) -> None:
    ids = await pushed(chancy, 6)
    other = await chancy.push(Job(func="shop.report", queue="slow"), validate=False)
    ask(
        dsn,
        f"""update chancy.jobs set pushed_at = pushed_at - interval '2 h', state = 2,
              run_at = now() + interval '1 h',
              errors = '[{{"types": ["shop.Declined"], "message": "No funds"}}]'
            where id = '{ids[0]}'""",
    )

    async def count(**conditions: object) -> int:
        selected = chancy.select_jobs(JobSelection(**conditions))  # type: ignore[arg-type]
        return (await selected.cancel(dry_run=True)).matched

    assert await count() == 7
    assert await count(queue="slow") == 1
    assert await count(func="send") == await count(func="shop.s*") == 6
    assert await count(func="shop.report") == 1
    assert await count(func="port") == 0
    assert await count(states={State.SCHEDULED}) == await count(older_than=HOUR) == 1
    assert await count(newer_than=HOUR) == 6
    assert await count(where={"n": 3}) == 1
    assert await count(where={"to.city": "c0"}) == 3
    assert await count(where={"to.city": "c0", "n": 1}) == await count(where={"to": "c0"}) == 0
    assert await count(where={"missing": None}) == 0
    assert await count(error="declined: no FUNDS") == 1
    assert await states(chancy, [other.id]) == [State.PENDING], "a dry run changes nothing"


async def test_batches_are_bounded_and_show_progress(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "BATCH", 10)
    monkeypatch.setattr(selection, "_READ", 25)
    ids = await pushed(chancy, 60)
    seen: list[ChangedJobs] = []
    done = await chancy.select_jobs(JobSelection(where={"to.city": "c1"})).cancel(
        progress=seen.append
    )
    assert done == seen[-1] == ChangedJobs(30, 30)
    steps = [0, *(one.matched for one in seen)]
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 10
    assert await states(chancy, ids) == [State.PENDING, State.CANCELLED] * 30


LARGE = """update {} set arguments = arguments || jsonb_build_object('filler', (
  select string_agg(md5(n::text || id::text), '') from generate_series(1, 24000) as n))"""


async def test_a_statement_looks_into_few_large_jobs(
    chancy: Chancy, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 jobs with 768 KB each: eleven of them have 8 MiB."""
    ids = await pushed(chancy, 24)
    ask(dsn, LARGE.format("chancy.jobs"))
    store = chancy.control
    assert isinstance(store, PostgresBroker)
    looks: list[int] = []
    fetch = store.fetch

    async def counted(statement: str, *parameters: object) -> object:
        rows = await fetch(statement, *parameters)
        if statement == store.sql.matching_jobs:
            looks.append(len(rows[0][0]))
        elif statement == store.sql.delete_finished:
            looks.append(rows[0][0])
        return rows

    monkeypatch.setattr(store, "fetch", counted)
    assert await chancy.select_jobs(JobSelection(queue="mail")).cancel(dry_run=True) == (24, 0, 0)
    assert looks == [24], "arguments are not read"
    odd = JobSelection(where={"to.city": "c1"})
    looks.clear()
    assert await chancy.select_jobs(odd).cancel() == (12, 12, 0)
    assert looks == [5, 6, 1]
    await chancy.cancel(*ids)
    ask(dsn, "update chancy.finished_jobs set finished_at = now() - interval '2 h'")
    looks.clear()
    assert await chancy.select_jobs(odd).delete() == (12, 12, 0)
    assert looks == [5, 6, 1]


async def test_waiting_jobs_move_and_running_ones_stay(chancy: Chancy, dsn: str) -> None:
    first, second, later, running = await pushed(chancy, 4)
    ask(
        dsn,
        f"""update chancy.jobs set state = case id when '{later}' then 2 else 1 end,
              run_at = now() + interval '1 h'
            where id in ('{later}', '{running}')""",
    )
    selected = chancy.select_jobs(JobSelection(queue="mail"))
    assert await selected.move("slow", dry_run=True) == ChangedJobs(3, 0)
    assert await selected.move("slow") == ChangedJobs(3, 3)
    ids = [first, second, later, running]
    found = await chancy.get_jobs(ids)
    assert [found[id].queue for id in ids] == ["slow", "slow", "slow", "mail"]
    rows = ask(dsn, "select id from chancy.jobs where queue = 'slow' order by pos")
    assert [row[0] for row in rows] == [first, second, later]
    assert [found[id].state for id in (first, later)] == [State.PENDING, State.SCHEDULED]
    store = chancy.control
    assert isinstance(store, PostgresBroker)
    sql = store.sql
    for statement, *values in (
        (sql.move, "slow"),
        (sql.prioritize, 3),
        (sql.reschedule, None, 60.0),
    ):
        # As if it had started after it was selected.
        assert (await store.fetch(statement, [running], *values))[0][0] == 0
    with pytest.raises(ConfigurationError, match=r"'slwo' is not declared .did you mean 'slow'"):
        await selected.move("slwo")


async def test_priorities_and_times_change(chancy: Chancy, dsn: str) -> None:
    low, high = await pushed(chancy, 2)
    one = chancy.select_jobs(JobSelection(where={"n": 1}))
    with psycopg.connect(dsn, autocommit=True) as listener:
        ((channel,),) = ask(listener, "select chancy.channel()")
        listener.execute(f"listen {channel}".encode())
        assert await one.prioritize(7) == ChangedJobs(1, 1)
        (notice,) = listener.notifies(timeout=10, stop_after=1)
        assert notice.payload == "r:mail", "workers claim from the front again"
    assert await one.prioritize(7) == ChangedJobs(1, 0)
    every = chancy.select_jobs(JobSelection(queue="mail"))
    assert await every.reschedule(HOUR) == ChangedJobs(2, 2)
    found = await chancy.get_jobs([low, high])
    assert [found[id].priority for id in (low, high)] == [0, 7]
    assert {job.state for job in found.values()} == {State.SCHEDULED}
    assert await one.run_now() == ChangedJobs(1, 1)
    assert await every.reschedule(0) == ChangedJobs(2, 1), "one is pending"
    assert await states(chancy, [low, high]) == [State.PENDING] * 2
    with pytest.raises(
        ConfigurationError, match=r"retry \(run_now\) does not apply to failed jobs"
    ):
        await chancy.select_jobs(JobSelection(states=frozenset({State.FAILED}))).run_now()


async def test_workers_run_what_is_moved_and_raised(dsn: str) -> None:
    """Raised behind the position from which the worker claims."""
    queues = [
        Queue(name="mail", executor="async", concurrency=1, poll_interval_s=60),
        Queue(name="slow", executor="async", poll_interval_s=60),
    ]
    note = "tests.support.jobs.note"
    async with Chancy(dsn, queues=queues, allow=["tests.*"]) as chancy, Worker(chancy):
        await chancy.pause_queue("mail")
        jobs = [Job(func=note, queue="mail", arguments={"value": n}) for n in range(3)]
        moved, raised, stays = await chancy.push_many(jobs)
        await chancy.select_jobs(JobSelection(where={"value": 0})).move("slow")
        assert (await moved.wait(30)).queue == "slow"
        await chancy.select_jobs(JobSelection(where={"value": 2})).prioritize(9)
        await chancy.resume_queue("mail")
        first, second = await stays.wait(30), await raised.wait(30)
        assert first.claimed_at is not None
        assert second.claimed_at is not None
        assert first.claimed_at < second.claimed_at


async def test_finished_jobs_are_deleted_by_the_batch(
    chancy: Chancy, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "BATCH", 4)
    monkeypatch.setattr(selection, "_READ", 9)
    ids = await pushed(chancy, 20)
    again = uuid4()
    await chancy.cancel(*ids)
    every = JobSelection(states=frozenset({State.CANCELLED}))
    assert await chancy.select_jobs(every).delete() == ChangedJobs(), "they have just finished"
    with psycopg.connect(dsn) as connection:
        connection.execute("update chancy.finished_jobs set finished_at = now() - interval '2 h'")
        # A job that was pushed again and again under its own id.
        connection.execute(
            "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
            " max_attempts, crashes, pushed_at, finished_at) select %s, n, 6, 'mail', 0, 'a.b', 1,"
            " 1, 0, now(), now() - n * interval '1 h' from generate_series(3, 20) as n",
            [again],
        )
    late = JobSelection(queue="mail", newer_than=timedelta(hours=3))
    odd = JobSelection(func="send", older_than=HOUR, where={"to.city": "c1"})
    assert await chancy.select_jobs(late).delete(dry_run=True) == ChangedJobs(20, 0)
    assert await chancy.select_jobs(odd).delete() == ChangedJobs(10, 10)
    assert await chancy.select_jobs(every).delete() == ChangedJobs(28, 28)
    assert ask(dsn, "select count(*) from chancy.finished_jobs") == [(0,)]


@pytest.mark.parametrize(
    ("states", "minutes"),
    [([], 10), ([State.FAILED], 10), ([State.SUCCEEDED], 1), ([State.CANCELLED], 1)],
)
async def test_deleting_leaves_failed_jobs_to_the_sweep_of_dead_letters(
    chancy: Chancy, dsn: str, states: list[State], minutes: int
) -> None:
    ids = await pushed(chancy, 4)
    await chancy.cancel(*ids)
    state = (states or [State.FAILED])[0]
    with psycopg.connect(dsn) as connection:
        connection.execute("update chancy.finished_jobs set state = %s", [state])
        for id, age_s in zip(ids, (30, 90, 570, 630), strict=True):
            connection.execute(
                "update chancy.finished_jobs set finished_at = now() - %s * interval '1 s'"
                " where id = %s",
                [age_s, id],
            )
    wanted = JobSelection(queue="mail", states=frozenset(states))
    kept = {1: 1, 10: 3}[minutes]
    assert (await chancy.select_jobs(wanted).delete()).changed == 4 - kept
    assert ask(dsn, "select count(*) from chancy.finished_jobs") == [(kept,)]


async def test_jobs_of_another_broker_are_cancelled_and_never_moved(dsn: str) -> None:
    queues = [
        Queue(name="mail", executor="async"),
        Queue(name="far", executor="async", broker="memory"),
    ]
    async with Chancy(dsn, queues=queues, plugins=[TwoBrokers()], allow=["shop.*"]) as chancy:
        for queue in queues:
            await chancy.declare(queue)
        near, far = await pushed(chancy, 3), await pushed(chancy, 3, "far")
        for wanted in (JobSelection(), JobSelection(queue="far")):
            with pytest.raises(ConfigurationError, match=r"queue 'far' are in memory"):
                await chancy.select_jobs(wanted).move("mail")
        chosen = JobSelection(func="send", where={"n": 1}, newer_than=HOUR)
        assert await chancy.select_jobs(chosen).cancel() == ChangedJobs(2, 2)
        assert await chancy.select_jobs(JobSelection(queue="mail")).prioritize(1) == (2, 2, 0)
        for ids in (near, far):
            assert await states(chancy, ids) == [State.PENDING, State.CANCELLED, State.PENDING]


async def test_running_jobs_are_asked_to_stop(dsn: str) -> None:
    async with Chancy(dsn) as chancy, Worker(chancy, queues=["async"]):
        await chancy.declare(Queue(name="async", executor="async"))
        running = await chancy.push(Job(func="tests.support.jobs.wait_for_ever", queue="async"))
        await eventually(lambda: is_in(running, State.RUNNING))
        assert await chancy.select_jobs(JobSelection()).cancel() == ChangedJobs(1, 0, 1)
        assert (await running.wait(30)).state is State.CANCELLED


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"where": {"n": [1]}}, r"where: n=\[1\] must be a string"),
        ({"where": {"a": 1, "a.b": 2}}, "lead into each other"),
        ({"where": {"a.": 1}}, r"'a.' is not the name of an argument"),
        ({"where": {"a": float("nan")}}, "not a JSON number"),
        ({"older_than": -HOUR}, "older_than=.* must be a timedelta"),
        ({"func": "a b"}, "not a valid name or pattern"),
        ({"error": ""}, "is part of every failure"),
        ({"queue": "a b"}, "not a valid queue name"),
    ],
)
def test_wrong_conditions_are_refused(conditions: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JobSelection(**conditions)  # type: ignore[arg-type]


@pytest.mark.parametrize("run_at", [float("nan"), 1e300, True])
async def test_wrong_times_are_refused(run_at: float) -> None:
    selected = Chancy("postgresql://nowhere").select_jobs(JobSelection())
    with pytest.raises(PushError, match="run_at="):
        await selected.reschedule(run_at)
