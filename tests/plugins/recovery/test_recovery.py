"""Who sweeps, and whom a silence makes dead."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker, WorkerRecord
from chancy.attempt.claim import Claim
from chancy.plugin.leader import LeaderGate
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import Runtime
from chancy.plugins.recovery import HeartbeatObserver, Recovery
from chancy.postgres.broker import PostgresBroker
from chancy.testing.clock import ManualClock
from tests.support import jobs
from tests.support.waiting import eventually

ASYNC = Queue(name="async", executor="async")
BEAT = datetime(2030, 1, 1, tzinfo=UTC)


class Never:
    """The gate of a worker that does not lead, until a test says so."""

    term: int | None = None

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self.term is not None

    def lead(self) -> None:
        self.term = 1
        self.begun.set()

    async def wait(self) -> int:
        await self.begun.wait()
        return 1

    def vacant(self) -> None: ...


class Given(Plugin):
    """Takes the place of the election."""

    def __init__(self) -> None:
        self.made = Never()

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.leadership"

    def gate(self, runtime: Runtime) -> LeaderGate | None:
        return self.made


class Counting(Recovery):
    """Notes each sweep: whether silence counted, and the jobs that it rescued."""

    def __init__(self) -> None:
        super().__init__(sweep_s=0.1)
        self.sweeps: list[bool] = []
        self.rescued: list[int] = []

    async def sweep(self, runtime: Runtime, *, heartbeat_age_s: float | None = None) -> int:
        self.sweeps.append(heartbeat_age_s is None)
        self.rescued.append(await super().sweep(runtime, heartbeat_age_s=heartbeat_age_s))
        return self.rescued[-1]


def orphan(dsn: str, *, silent: str, registered: bool = True, started: bool = False) -> uuid.UUID:
    """Let a worker that is not there claim a job.

    :param started: store that it has started the job.
    """
    dead = uuid.uuid4()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into chancy.workers (id, host, pid, beat_at)"
            " values (%s, 'gone', 1, clock_timestamp() - %s::interval)",
            (dead, silent),
        )
        connection.execute(
            "select from chancy.claim(%s, gen_random_uuid(), 'async', 1, 1000000, null, null)",
            (dead,),
        )
        if started:
            connection.execute("update chancy.jobs set meta = jsonb_build_object('started', lease)")
        if not registered:
            connection.execute("delete from chancy.workers where id = %s", (dead,))
    return dead


@pytest.fixture
def recovery() -> Counting:
    return Counting()


@pytest.fixture
def election() -> Given:
    return Given()


@pytest.fixture
async def chancy(dsn: str, recovery: Counting, election: Given) -> AsyncIterator[Chancy]:
    plugins = [election, recovery]
    async with Chancy(
        dsn, queues=[ASYNC], plugins=plugins, no_default_plugins=True, pool_size=3
    ) as made:
        yield made


async def test_jobs_are_rescued_without_a_leader(
    chancy: Chancy, dsn: str, recovery: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    reference = await chancy.push(jobs.note.job(value=1))
    dead = orphan(dsn, silent="1 hour")
    began = time.monotonic()
    async with Worker(chancy, queues=["async"], heartbeat_s=0.1, heartbeat_timeout_s=0.4):
        done = await reference.wait(30)
    passed_s = time.monotonic() - began
    assert (done.state, done.crashes, done.attempt) == (State.SUCCEEDED, 1, 1)
    assert str(dead) in done.errors[0]["message"]
    # The one at the start, and those every 1.2 s, less a fifth. A leader makes ten a second.
    assert len(recovery.sweeps) <= 2 + passed_s / 0.9
    [crashed] = [one for one in caplog.records if one.msg.startswith("job_crashed")]
    assert vars(crashed)["job_id"] == str(reference.id)
    assert "died or missed heartbeats" in vars(crashed)["error"]


async def test_a_locked_row_stops_no_rescue(
    chancy: Chancy, dsn: str, recovery: Counting, election: Given, caplog: pytest.LogCaptureFixture
) -> None:
    locked, other = await chancy.push_many([jobs.note.job(value=1), jobs.note.job(value=2)])
    for _ in range(2):
        orphan(dsn, silent="1 hour")
    election.made.lead()
    with psycopg.connect(dsn) as person:
        person.execute("select from chancy.jobs where id = %s for update", [locked.id])
        async with Worker(chancy, queues=["async"], heartbeat_s=0.2, heartbeat_timeout_s=2.0):
            assert (await other.wait(20)).state is State.SUCCEEDED
            await eventually(lambda: 1 in recovery.rescued and recovery.rescued[-1] == 0)
            person.rollback()
            assert (await locked.wait(20)).state is State.SUCCEEDED
    assert recovery.rescued.count(1) == 2
    assert "worker_loop_failed" not in caplog.text


async def test_large_jobs_are_rescued_a_few_at_a_time(
    chancy: Chancy, dsn: str, recovery: Counting
) -> None:
    # 900 KB each that the server cannot compress.
    large = [jobs.discard.job(value=secrets.token_urlsafe(675_000)) for _ in range(8)]
    references = await chancy.push_many(large)
    for _ in large:
        orphan(dsn, silent="0 s", registered=False)
    assert len(await chancy.broker.orphans(heartbeat_age_s=3600, limit=100)) == 5
    async with Worker(chancy, queues=["async"]):
        for reference in references:
            assert (await reference.wait(30)).crashes == 1
    assert recovery.rescued[0] == 8


async def test_a_worker_is_not_dead_before_the_timeout(
    chancy: Chancy, dsn: str, recovery: Counting, election: Given
) -> None:
    await chancy.push(jobs.note.job(value=1))
    orphan(dsn, silent="40 s")
    election.made.lead()
    async with Worker(chancy, queues=["async"], heartbeat_s=1.0, heartbeat_timeout_s=60.0):
        await eventually(lambda: len(recovery.rescued) >= 2)
    assert all(recovery.sweeps), "silence counted in each sweep"
    assert set(recovery.rescued) == {0}


async def test_a_sweep_rescues_all_jobs_of_a_broker_that_returns_few(
    chancy: Chancy, dsn: str, recovery: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Redis does, whose scripts stop after some large records."""
    find = PostgresBroker.orphans

    async def find_one(
        self: PostgresBroker, *, heartbeat_age_s: float, limit: int
    ) -> Sequence[Claim]:
        return await find(self, heartbeat_age_s=heartbeat_age_s, limit=min(1, limit))

    monkeypatch.setattr(PostgresBroker, "orphans", find_one)
    references = await chancy.push_many([jobs.note.job(value=n) for n in range(3)])
    for _ in references:
        orphan(dsn, silent="0 s", registered=False)
    async with Worker(chancy, queues=["async"]):
        for reference in references:
            assert (await reference.wait(10)).state is State.SUCCEEDED
    assert recovery.rescued[0] == 3


@pytest.mark.parametrize(
    ("crashes", "started", "counted"),
    [(0, False, 1), (1, False, 1), (1, True, 2), (2, False, 2)],
    ids=["first crash", "not started", "started", "quarantined and not started"],
)
async def test_a_job_that_has_crashed_is_charged_only_if_its_start_is_stored(
    chancy: Chancy, dsn: str, crashes: int, started: bool, counted: int
) -> None:
    reference = await chancy.push(jobs.note.job(value=1).with_max_attempts(1))
    orphan(dsn, silent="0 s", registered=False)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("update chancy.jobs set crashes = %s", (crashes,))
        # The start of an earlier attempt, and that of this one.
        connection.execute("""update chancy.jobs set meta = '{"started": "another lease"}'""")
        if started:
            connection.execute(
                "update chancy.jobs set meta = jsonb_build_object('started', lease::text)"
            )
    async with Worker(chancy, queues=["async"]):
        done = await reference.wait(30)
    assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, counted)
    assert len(done.errors) == counted - crashes


async def test_followers_sweep_at_their_start_and_rarely(
    chancy: Chancy, dsn: str, recovery: Counting, election: Given
) -> None:
    reference = await chancy.push(jobs.note.job(value=1))
    orphan(dsn, silent="0 s", registered=False)
    async with Worker(chancy, queues=["async"], heartbeat_s=1.0, heartbeat_timeout_s=30.0):
        assert (await reference.wait(10)).crashes == 1
        assert len(recovery.sweeps) == 1
        later = await chancy.push(jobs.note.job(value=2).with_delay(3600))
        assert len(recovery.sweeps) == 1
        # Whoever begins to lead sweeps at once, and goes on.
        election.made.lead()
        await eventually(lambda: len(recovery.sweeps) >= 4)
        await chancy.cancel(later.id)


async def test_setting_a_clock_declares_no_worker_dead(
    chancy: Chancy, dsn: str, recovery: Counting, election: Given
) -> None:
    """The clock of the database is put forward by an hour: every beat looks an hour old."""
    election.made.lead()
    async with Worker(
        chancy, queues=["async"], heartbeat_s=0.6, heartbeat_timeout_s=30.0
    ) as worker:
        first, swept = worker.worker_id, len(recovery.sweeps)
        with psycopg.connect(dsn, autocommit=True) as connection:

            def put_forward() -> bool:
                # Again and again: on a busy machine a heartbeat may come before the next sweep.
                connection.execute(
                    "update chancy.workers set beat_at = beat_at - interval '1 hour'"
                )
                return False in recovery.sweeps[swept:]

            await eventually(put_forward)
        await eventually(lambda: recovery.sweeps[-1])
        assert worker.worker_id == first
        assert [one.id for one in await chancy.get_workers()] == [first]


async def test_a_worker_that_died_before_the_clock_went_back_is_found(
    chancy: Chancy, dsn: str, election: Given, caplog: pytest.LogCaptureFixture
) -> None:
    reference = await chancy.push(jobs.note.job(value=1))
    dead = orphan(dsn, silent="-1 hour")
    election.made.lead()
    async with Worker(chancy, queues=["async"], heartbeat_s=0.2, heartbeat_timeout_s=2.0):
        assert (await reference.wait(15)).crashes == 1
    assert f"heartbeat_ahead worker={dead}" in caplog.text


def record(one: uuid.UUID, heartbeat_age_s: float, beats: int = 0) -> WorkerRecord:
    return WorkerRecord(
        id=one,
        host="h",
        pid=1,
        tags=frozenset(),
        queues=(),
        version="1",
        beat_at=BEAT + timedelta(seconds=beats),
        heartbeat_age_s=heartbeat_age_s,
    )


def test_a_missed_heartbeat_counts_once_it_was_observed_and_reported() -> None:
    clock = ManualClock()
    heartbeats, one, two = HeartbeatObserver(clock, 15.0), uuid.uuid4(), uuid.uuid4()

    def look(*workers: WorkerRecord) -> tuple[bool, bool]:
        heartbeats.observe(workers, clock.monotonic())
        return heartbeats.confirmed, heartbeats.uncertain

    assert look() == (False, False)
    assert look(record(one, 3600), record(two, 0)) == (False, True)
    clock.advance(10)
    assert look(record(one, 3610), record(two, 0, beats=10)) == (False, True)
    clock.advance(6)
    assert look(record(one, 3616), record(two, 14)) == (True, False)
    # One that the database alone calls silent holds up the others until it is seen.
    assert look(record(one, 3616), record(two, 16, beats=11)) == (False, True)
    clock.advance(15.1)
    assert look(record(one, 3631), record(two, 31, beats=11)) == (True, False)
    # It beats again, and the other is gone.
    assert look(record(two, 1, beats=40)) == (False, False)
    # One that this process has not seen for long, and the database has.
    clock.advance(100)
    assert look(record(two, 2, beats=40)) == (False, False)


def test_a_worker_that_was_not_read_may_have_been_seen_before() -> None:
    clock = ManualClock()
    heartbeats, one, two = HeartbeatObserver(clock, 15.0), uuid.uuid4(), uuid.uuid4()
    heartbeats.observe([record(one, 0), record(two, 0)], clock.monotonic())
    clock.advance(10)
    heartbeats.observe([record(one, 10)], clock.monotonic(), others=True)
    clock.advance(6)
    heartbeats.observe([record(one, 16), record(two, 16)], clock.monotonic(), others=True)
    assert heartbeats.confirmed


async def test_leader_of_many_reads_all_workers_only_to_sweep(
    chancy: Chancy,
    dsn: str,
    recovery: Counting,
    election: Given,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chancy.plugins.recovery._FEW", 0)
    read: list[bool] = []
    workers = PostgresBroker.workers

    async def recorded(
        broker: PostgresBroker, *, heartbeat_age_s: float = 0.0
    ) -> Sequence[WorkerRecord]:
        read.append(heartbeat_age_s == 0)
        return await workers(broker, heartbeat_age_s=heartbeat_age_s)

    monkeypatch.setattr(PostgresBroker, "workers", recorded)
    election.made.lead()
    reference = await chancy.push(jobs.note.job(value=1))
    orphan(dsn, silent="0 s")
    async with Worker(chancy, queues=["async"], heartbeat_s=0.2, heartbeat_timeout_s=1.0):
        await eventually(lambda: len(recovery.sweeps) >= 4)
        # A worker that beats late makes further sweeps.
        await eventually(lambda: read.count(False) > read.count(True))
        assert (await reference.wait(10)).crashes == 1


def test_the_answer_of_a_slow_server_is_no_silence() -> None:
    clock = ManualClock()
    heartbeats, one = HeartbeatObserver(clock, 15.0), uuid.uuid4()
    heartbeats.observe([record(one, 20)], clock.monotonic())
    asked = clock.monotonic()
    clock.advance(30)
    heartbeats.observe([record(one, 20)], asked)
    assert not heartbeats.confirmed
    assert heartbeats.uncertain


def test_a_heartbeat_in_the_future_counts_once_it_was_observed() -> None:
    """Those of live workers change, whether or not their clock has gone back."""
    clock = ManualClock()
    heartbeats = HeartbeatObserver(clock, 15.0)
    dead, live, slow = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    found: list[list[uuid.UUID]] = []
    for number in range(5):
        workers = [record(dead, 0), record(live, 0, beats=-number), record(slow, 3)]
        heartbeats.observe(workers, clock.monotonic())
        assert (heartbeats.confirmed, heartbeats.uncertain) == (False, False)
        found.append([worker.id for worker in heartbeats.ahead])
        clock.advance(5)
    assert found == [[], [], [], [], [dead]]
