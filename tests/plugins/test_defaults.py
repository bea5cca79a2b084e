"""The plugins that an application has by default, and how they are replaced."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from chancy import Chancy, Plugin, Queue, State, Worker
from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Lost, Outcome, Raised, Returned
from chancy.attempt.settlement import Settlement
from chancy.errors import ConfigurationError
from chancy.plugins import standard
from chancy.plugins.pruner import Pruner
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.postgres.broker import PostgresBroker
from tests.support import jobs
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")


def claim(attempt: int = 1, most: int = 3) -> Claim:
    ids = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    return Claim(*ids, "q", "a.b", "{}", attempt, most, 0, 0, 1, None)


@pytest.mark.parametrize(
    ("outcome", "attempt", "state"),
    [
        (Raised(Failure.of(ValueError())), 1, State.SCHEDULED),
        (Raised(Failure.of(ValueError())), 3, State.FAILED),
        (Raised(Failure.named("chancy.errors.InvalidArguments", "no")), 1, State.FAILED),
        (Returned(), 1, State.SUCCEEDED),
        (Lost("gone"), 1, State.PENDING),
    ],
)
def test_retried_errors(outcome: Outcome, attempt: int, state: State) -> None:
    chancy = Chancy("postgresql://nowhere/nothing")
    assert chancy.hooks.judge(claim(attempt), outcome).state is state


def test_without_plugins_a_failure_is_for_good() -> None:
    chancy = Chancy("postgresql://nowhere/nothing", no_default_plugins=True)
    assert chancy.hooks.plugins == ()
    assert chancy.hooks.judge(claim(), Raised(Failure.of(ValueError()))).state is State.FAILED


def test_a_plugin_replaces_the_default_one_of_its_identifier() -> None:
    mine = Retries()
    chancy = Chancy("postgresql://nowhere/nothing", plugins=[mine])
    assert mine in chancy.hooks.plugins
    assert len(chancy.hooks.plugins) == len(standard())


def test_plugins_that_cannot_work_are_refused() -> None:
    class Needy(Plugin):
        def get_dependencies(self) -> Sequence[str]:
            return ["somebody.else"]

    for plugins, message in (
        ([Retries(), Retries()], "two plugins have the identifier 'chancy.retry'"),
        ([Needy()], "needs 'somebody.else'"),
        ([Retries], "not a Plugin"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            Chancy("postgresql://nowhere/nothing", plugins=plugins)  # type: ignore[arg-type]


def test_a_raising_judge_leaves_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Plugin):
        def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
            raise RuntimeError("broken")

    class Foreign(Plugin):
        def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
            return decision._replace(lease=uuid.uuid4())

    chancy = Chancy("postgresql://nowhere/nothing", plugins=[Broken(), Foreign()])
    one = claim()
    decision = chancy.hooks.judge(one, Returned("1"))
    assert decision == Settlement(one.id, one.lease, State.SUCCEEDED, result="1")
    assert caplog.text.count("hook_failed") == 2


async def test_recovery_runs_the_jobs_of_a_worker_without_heartbeats_again(dsn: str) -> None:
    jobs.noted.clear()
    plugins = [Recovery(sweep_s=0.1)]
    async with Chancy(dsn, queues=[ASYNC], plugins=plugins, pool_size=3) as chancy:
        references = await chancy.push_many(jobs.note.job(value=n) for n in range(7))
        dead = uuid.uuid4()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "insert into chancy.workers (id, host, pid, beat_at) "
                "values (%s, 'gone', 1, now() - interval '1 hour')",
                (dead,),
            )
            connection.execute(
                "select from chancy.claim(%s, gen_random_uuid(), 'async', 5, 1000000, null, null)",
                (dead,),
            )
        async with Worker(chancy, queues=["async"], heartbeat_s=0.1, heartbeat_timeout_s=0.3):
            await eventually(lambda: len(jobs.noted) == 2)  # the suspects run in a child
            done = [await reference.wait(10) for reference in references]
        assert sorted(one.crashes for one in done) == [0, 0, 1, 1, 1, 1, 1]
        assert {one.attempt for one in done} == {1}
        assert {one.state for one in done} == {State.SUCCEEDED}
        crashed = next(one for one in done if one.crashes)
        assert str(dead) in crashed.errors[0]["message"]


async def test_a_job_whose_workers_keep_dying_fails_for_good(dsn: str) -> None:
    async with Chancy(dsn, queues=[ASYNC], plugins=[Recovery(sweep_s=0.1)]) as chancy:
        reference = await chancy.push(jobs.note.job(value=1))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "update chancy.jobs set crashes = 2, state = 1, lease = id, worker_id = id,"
                " meta = jsonb_build_object('started', id)"
            )
        async with Worker(chancy, queues=["async"], heartbeat_s=0.1, heartbeat_timeout_s=0.3):
            done = await reference.wait(10)
    assert (done.state, done.crashes) == (State.FAILED, 3)
    assert "crash 3 of 3" in done.errors[-1]["message"]


async def test_the_pruner_makes_the_days_to_come_and_drops_old_ones(dsn: str) -> None:
    today = datetime.now(UTC).date()

    def name(days: int) -> str:
        return f"finished_jobs_{today + timedelta(days=days):%Y%m%d}"

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"drop table chancy.{name(3)}".encode())
        for days in (-9, -8, -7):
            connection.execute(
                f"create table chancy.{name(days)} partition of chancy.finished_jobs for values "
                f"from ('{today + timedelta(days=days)} 00:00+00') "
                f"to ('{today + timedelta(days=days + 1)} 00:00+00')".encode()
            )
    async with Chancy(dsn) as chancy:
        assert isinstance(chancy.broker, PostgresBroker)
        assert await Pruner(keep_days=7).prune(chancy.broker) == [name(-9), name(-8)]
        assert await Pruner(keep_days=7).prune(chancy.broker) == []
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select inhrelid::regclass::text from pg_inherits "
            "where inhparent = 'chancy.finished_jobs'::regclass"
        ).fetchall()
    found = {str(row[0]) for row in rows}
    assert found == {f"chancy.{name(days)}" for days in (-7, *range(8))} | {
        "chancy.finished_jobs_default"
    }


async def test_the_pruner_gives_way_to_a_reader(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    today = datetime.now(UTC).date()
    with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as reader:
        connection.execute(
            f"drop table chancy.finished_jobs_{today + timedelta(days=2):%Y%m%d}".encode()
        )
        reader.execute("lock table chancy.finished_jobs in share update exclusive mode")
        async with Chancy(dsn) as chancy:
            assert isinstance(chancy.broker, PostgresBroker)
            await Pruner().prune(chancy.broker)
    assert "prune_postponed" in caplog.text


async def test_the_pruner_moves_what_came_before_its_days_partition(dsn: str) -> None:
    today = f"finished_jobs_{datetime.now(UTC).date():%Y%m%d}"
    async with Chancy(dsn, queues=[ASYNC]) as chancy:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"drop table chancy.{today}".encode())
            bare = Chancy(dsn, queues=[ASYNC], no_default_plugins=True)
            async with bare, Worker(bare, queues=["async"]):
                reference = await bare.push(jobs.note.job(value=1))
                await reference.wait(10)
            count = "select count(*) from chancy.finished_jobs_default"
            assert isinstance(chancy.broker, PostgresBroker)
            await Pruner().prune(chancy.broker)
            assert connection.execute(count.encode()).fetchone() == (0,)
            kept = connection.execute(f"select id from chancy.{today}".encode()).fetchall()
        assert kept == [(reference.id,)]
        assert await chancy.get_job(reference.id) is not None


async def test_a_pruner_without_privileges_logs_it_once(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop role if exists visitor")
        connection.execute("create role visitor login")
        connection.execute("grant usage on schema chancy to visitor")
        connection.execute("grant all on all tables in schema chancy to visitor")
        connection.execute("grant all on all sequences in schema chancy to visitor")
        today = f"finished_jobs_{datetime.now(UTC).date():%Y%m%d}"
        connection.execute(f"drop table chancy.{today}".encode())
    async with Chancy(dsn.replace("postgres@", "visitor@")) as chancy, Worker(chancy, queues=[]):
        await eventually(lambda: "prune_not_allowed" in caplog.text)
    assert "worker_loop_failed" not in caplog.text
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("drop owned by visitor")
        connection.execute("drop role visitor")
