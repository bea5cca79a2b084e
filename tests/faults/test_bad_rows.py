"""Rows with values that nobody of us would write: each is dealt with alone."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from chancy import Chancy, JobFilter, Queue, State
from chancy.broker.values import WorkerRecord
from chancy.job.ids import new_id
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.sql import ask
from tests.support.waiting import eventually

#: What somebody sets by hand.
IMPOSSIBLE: Mapping[str, str] = {
    "the last attempt of all": "attempt = 2147483647",
    "an attempt below zero": "attempt = -2147483648",
    "no attempts allowed": "max_attempts = -1",
    "any number of attempts allowed": "max_attempts = 2147483647",
    # With a stored start, so that the death of the worker counts as a crash.
    "the last crash of all": "crashes = 32767, meta = jsonb_build_object('started', lease)",
    "crashes below zero": "crashes = -32768, meta = jsonb_build_object('started', lease)",
    "the highest priority": "priority = 32767",
    "the lowest priority": "priority = -32768",
    "the last position": "pos = 9223372036854775807",
    "the first position": "pos = -9223372036854775807",
    "due for ever": "run_at = 'infinity'",
    "due since ever": "run_at = '-infinity'",
    "due before Christ": "run_at = '4714-11-24 00:00:00+00 BC'",
    "pushed at the end of time": "pushed_at = 'infinity'",
    "pushed in the year 294276": "pushed_at = '294276-12-31 23:59:59+00'",
    "claimed before time": "claimed_at = '-infinity'",
    "a deadline before time": "deadline_at = '-infinity'",
    "a meta that is an array": "meta = '[1]'",
    "a meta that is a text": "meta = '\"text\"'",
    "a meta that is null": "meta = 'null'",
    "a meta of another count": 'meta = \'{"unknown_function": "x"}\'',
    "errors that are an object": "errors = '{\"a\": 1}'",
    "errors that are a text": "errors = '\"text\"'",
    "errors that are null": "errors = 'null'",
    "errors that are no errors": "errors = '[1, null, [], {}, \"x\"]'",
    "ten thousand errors": "errors = to_jsonb(array(select generate_series(1, 10000)))",
    "limits of another form": "limits = '[1]'",
    "a key that nobody set": "unique_key = '\\x00'",
}
NEIGHBOURS = 50


async def push(
    chancy: Chancy, book: Book, *, seconds: float = 0.0, until: str = ""
) -> list[uuid.UUID]:
    """One job for each impossible value, among others; returns the ids of the former."""
    ids = [new_id() for _ in IMPOSSIBLE]
    factory = jobs.work.job.with_max_attempts(3)
    # With delays, so that the values meet the rows in the middle of a batch.
    many = [
        factory(book=str(book), number=number, seconds=seconds, until=until).with_id(id)
        for number, id in enumerate(ids)
    ]
    many += [
        factory(book=str(book), number=len(ids) + number, seconds=seconds, until=until)
        for number in range(NEIGHBOURS)
    ]
    await chancy.push_many(many[::2] + many[1::2])
    return ids


def spoil(dsn: str, ids: list[uuid.UUID]) -> None:
    for id, change in zip(ids, IMPOSSIBLE.values(), strict=True):
        ask(dsn, f"update chancy.jobs set {change} where id = %s", [id])


async def check_all_can_be_read(chancy: Chancy) -> None:
    found = await chancy.find_jobs(JobFilter(limit=1_000))
    assert len(found) == len(IMPOSSIBLE) + NEIGHBOURS


@pytest.mark.chaos
async def test_impossible_values_in_a_batch_of_claims(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    ids = await push(chancy, book)
    spoil(dsn, ids)
    await check_all_can_be_read(chancy)
    worker = start_worker(dsn)
    await eventually(lambda: tables.live(dsn) == 0)
    worker.stop()
    oracles.check_all_succeeded(dsn, len(ids) + NEIGHBOURS)
    oracles.check_ran_once(book, range(len(ids) + NEIGHBOURS))
    await check_all_can_be_read(chancy)


async def test_impossible_values_in_a_batch_of_settlements(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker, tmp_path: Path
) -> None:
    worker = start_worker(dsn, heartbeat_timeout_s=30.0)
    worker.wait_until_ready()
    gate = tmp_path / "gate"
    ids = await push(chancy, book, until=str(gate))
    count = len(ids) + NEIGHBOURS
    await eventually(lambda: len(book.count("begin")) == count)
    spoil(dsn, ids)
    assert tables.states(dsn) == {State.RUNNING: count}
    await check_all_can_be_read(chancy)
    gate.touch()
    await eventually(lambda: tables.live(dsn) == 0)
    assert worker.stop().stale == 0
    oracles.check_all_succeeded(dsn, count)
    oracles.check_ran_once(book, range(count))
    await check_all_can_be_read(chancy)


@pytest.mark.chaos
async def test_impossible_values_in_a_batch_of_retries(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    """Everything is given back at once, by a worker that is told to stop."""
    worker = start_worker(dsn, shutdown_timeout_s=0.2)
    worker.wait_until_ready()
    ids = await push(chancy, book, seconds=60.0)
    count = len(ids) + NEIGHBOURS
    await eventually(lambda: len(book.count("begin")) == count)
    spoil(dsn, ids)
    report = worker.stop()
    assert (report.outcomes["Released"], report.stale) == (count, 0)
    assert tables.states(dsn) == {State.PENDING: count}
    await check_all_can_be_read(chancy)


@pytest.mark.chaos
async def test_impossible_values_in_a_batch_of_rescues(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    dead = WorkerRecord(
        id=uuid.uuid4(), host="gone", pid=1, tags=frozenset(), queues=(), version="0"
    )
    await chancy.declare(Queue(name="load", executor="async"))
    ids = await push(chancy, book)
    count = len(ids) + NEIGHBOURS
    await chancy.broker.register(dead)
    claims = await chancy.broker.claim("load", worker_id=dead.id, limit=count, thorough=True)
    assert len(claims) == count
    spoil(dsn, ids)
    await chancy.broker.unregister(dead.id)
    worker = start_worker(dsn)
    await eventually(lambda: tables.live(dsn) == 0)
    assert worker.stop().outcomes["Lost"] == count
    hopeless = list(IMPOSSIBLE).index("the last crash of all")
    assert tables.states(dsn) == {State.SUCCEEDED: count - 1, State.FAILED: 1}
    oracles.check_ran_once(book, set(range(count)) - {hopeless})
    await check_all_can_be_read(chancy)


@pytest.mark.parametrize("change", ["state = 9", "state = -1", "id = null", "queue = null"])
def test_the_tables_refuse_what_no_reader_could_take(dsn: str, book: Book, change: str) -> None:
    with Chancy(dsn) as chancy:
        chancy.sync_declare(Queue(name="load"))
        chancy.sync_push(jobs.work.job(book=str(book), number=1))
    with pytest.raises(psycopg.errors.IntegrityError):
        ask(dsn, f"update chancy.jobs set {change}")


@pytest.mark.parametrize(
    ("moment", "due"),
    [
        ("'infinity'", False),
        ("'294276-12-31 23:59:59+00'", False),
        ("'4714-11-24 00:00:00+00 BC'", True),
        ("'-infinity'", True),
    ],
)
async def test_an_impossible_time_does_not_keep_others_from_being_due(
    chancy: Chancy, dsn: str, book: Book, moment: str, due: bool
) -> None:
    factory = jobs.work.job.with_delay(3600.0)
    odd = await chancy.push(factory(book=str(book), number=1))
    ask(dsn, f"update chancy.jobs set run_at = {moment} where id = %s", [odd.id])
    await chancy.push(factory(book=str(book), number=2).with_delay(0.001))
    await eventually(lambda: tables.overdue(dsn) > due)
    promoted = [(await chancy.broker.promote(1)).promoted for _ in range(3)]
    assert sum(promoted) == 1 + due
    assert await odd.status() is (State.PENDING if due else State.SCHEDULED)
