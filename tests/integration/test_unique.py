"""Unique jobs as a user pushes them: `Unique` through the application, over a real database."""

from __future__ import annotations

import asyncio
import pickle
import threading
import uuid
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, DuplicateJob, JobFilter, Queue, State, Unique, Worker
from chancy.errors import PushError
from tests.support import jobs
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

QUEUES = [Queue(name="async", executor="async", poll_interval_s=60)]
HOUR = timedelta(hours=1)
PUSHERS = 16


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    async with Chancy(dsn, queues=QUEUES, pool_size=3) as made:
        yield made


def note(value: object, **rule: Any) -> Any:
    return jobs.note.job(value).with_unique(Unique(**rule))


async def test_the_second_push_gives_the_job_that_is_there(chancy: Chancy) -> None:
    first = await chancy.push(note(1))
    second = await chancy.push(note(1))
    assert (first.created, second.created, second) == (True, False, first)
    assert (await chancy.push(note(2))).created
    async with Worker(chancy):
        assert await second.result(30) == 1
    assert (await chancy.push(note(1))).created, "the key was given back"


async def test_a_duplicate_can_be_an_error(chancy: Chancy) -> None:
    first = await chancy.push(note(1, key="k"))
    with pytest.raises(DuplicateJob, match=r"tests\.support\.jobs\.note") as caught:
        await chancy.push(note(2, key="k", on_conflict="raise"))
    assert caught.value.id == first.id


async def test_debounced_pushes_run_once_with_the_last_arguments(chancy: Chancy, dsn: str) -> None:
    rule = {"key": "k", "cap": HOUR}
    async with Worker(chancy):
        references = [await chancy.push(note(n, debounce=HOUR, **rule)) for n in range(9)]
        references.append(await chancy.push(note(9, debounce=timedelta(seconds=0.6), **rule)))
        assert len({*references}) == 1
        assert await references[0].result(60) == 9
    assert jobs.noted == [9]
    [(early,)] = ask(dsn, "select claimed_at < run_at from chancy.finished_jobs")
    assert not early


async def test_debounce_and_a_time_are_not_both_given(chancy: Chancy) -> None:
    with pytest.raises(PushError, match="omit one of them"):
        await chancy.push(note(1, key="k", debounce=HOUR, cap=HOUR).with_delay(1))


async def test_a_push_that_meets_the_claim_of_its_job_is_not_lost(chancy: Chancy, dsn: str) -> None:
    """The claim locks the row, the push finds the key taken, and then the claim releases it."""
    rule = {"key": "k", "on_conflict": "replace", "until": "started"}
    first = await chancy.push(note(1, **rule))
    async with await psycopg.AsyncConnection.connect(dsn) as claim:
        await claim.execute("select from chancy.jobs for update skip locked")
        pushing = asyncio.create_task(chancy.push(note(2, **rule)))
        waits = f"select 1 from pg_stat_activity where {BLOCKED}"
        await eventually(lambda: ask(dsn, waits))
        await claim.execute(
            "update chancy.jobs set state = 1, attempt = 1, unique_key = null,"
            " lease = gen_random_uuid(), worker_id = gen_random_uuid(), claimed_at = now()"
        )
    second = await pushing
    assert second.created
    found = present(await second.get())
    assert (found.arguments, found.state) == ({"value": 2}, State.PENDING)
    assert await first.status() is State.RUNNING


async def test_a_bulk_push_keeps_to_keys(chancy: Chancy) -> None:
    first = await chancy.push(note(7))
    references = await chancy.push_many(note(number % 1_500) for number in range(4_000))
    assert len({one.id for one in references}) == 1_500
    assert references[7] == references[1_507] == first
    assert sum(one.created for one in references) == 1_499
    with pytest.raises(DuplicateJob, match=f"is held by job {first.id}") as caught:
        await chancy.push_many(
            note(number, on_conflict="raise") for number in (*range(5_000, 7_500), 7)
        )
    assert not caught.value.together
    assert (await chancy.counts())["async"][State.PENDING] == 1_500


async def test_jobs_of_a_call_may_be_each_others_duplicates(chancy: Chancy) -> None:
    """In one statement, in several, and in several transactions."""
    few, many = ([note(n, on_conflict="raise") for n in (*range(1, m), 1)] for m in (2, 7_000))
    for twice in (few, many):
        with pytest.raises(DuplicateJob, match="another job of the same call") as caught:
            await chancy.push_many(twice)
        assert caught.value.together
        assert pickle.loads(pickle.dumps(caught.value)).together
    with pytest.raises(DuplicateJob, match="is held by job") as caught:
        await chancy.push_many(many, commit_every=6_000)
    assert not caught.value.together
    assert caught.value.__notes__ == [
        "6,000 earlier jobs of this push are committed (commit_every)"
    ]


# In transactions


class Undo(Exception):
    """Ends a transaction without a commit."""


async def test_a_rollback_gives_the_key_back(chancy: Chancy) -> None:
    with suppress(Undo):
        async with chancy.transaction() as transaction:
            assert (await chancy.push(note(1), within=transaction)).created
            assert not (await chancy.push(note(1), within=transaction)).created
            raise Undo
    assert (await chancy.push(note(1))).created


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_push_waits_for_the_transaction_that_has_its_key(
    chancy: Chancy, dsn: str, end: str
) -> None:
    with psycopg.connect(dsn) as holder:
        [(held,)] = holder.execute(
            "select chancy.push('async', 'tests.support.jobs.note', "
            "'{\"value\": 1}', unique_key => 'k')"
        ).fetchall()
        waiting = asyncio.create_task(chancy.push(note(2, key="k")))
        waits = f"select 1 from pg_stat_activity where {BLOCKED}"
        await eventually(lambda: ask(dsn, waits))
        holder.commit() if end == "commit" else holder.rollback()
    reference = await waiting
    assert reference.created is (end == "rollback")
    assert (reference.id == held) is (end == "commit")


async def test_a_duplicate_leaves_the_transaction_as_it_was(chancy: Chancy, dsn: str) -> None:
    held = await chancy.push(note(1, key="k"))
    with psycopg.connect(dsn) as connection:
        kept = await chancy.push(note(2), within=connection)
        refused = [note(3), note(4, key="k", on_conflict="raise")]
        with pytest.raises(DuplicateJob) as caught:
            await chancy.push_many(refused, within=connection)
        also = await chancy.push(note(5), within=connection)
    assert caught.value.id == held.id
    found = {job.id for job in await chancy.find_jobs(JobFilter())}
    assert found == {held.id, kept.id, also.id}


# Many at one moment


@pytest.mark.parametrize(
    "rule",
    [{}, {"on_conflict": "replace"}, {"debounce": HOUR, "cap": HOUR}],
    ids=["skip", "replace", "debounce"],
)
def test_sixteen_pushers_of_one_key_push_one_job(dsn: str, rule: dict[str, Any]) -> None:
    """Each with an application and sessions of its own, all at one moment, three times over."""
    barrier = threading.Barrier(PUSHERS)

    def push(number: int, key: str) -> tuple[bool, Any]:
        with Chancy(dsn, pool_size=1) as own:
            own.sync_get_job(uuid.uuid4())  # so that its session is open
            barrier.wait(30)
            try:
                reference = own.sync_push(note(number, key=key, **rule))
            except DuplicateJob as error:
                return False, error.id
            return reference.created, reference.id

    with ThreadPoolExecutor(PUSHERS) as threads:
        for key in "abc":
            answers = list(threads.map(push, range(PUSHERS), [key] * PUSHERS))
            assert sum(created for created, _ in answers) == 1
            assert len({id for _, id in answers}) == 1
    assert ask(dsn, "select count(*), count(distinct unique_key) from chancy.jobs") == [(3, 3)]


def test_sixteen_bulk_pushers_of_the_same_keys_do_not_deadlock(dsn: str) -> None:
    barrier = threading.Barrier(PUSHERS)

    def push(number: int) -> int:
        keys = range(100) if number % 2 else range(99, -1, -1)
        with Chancy(dsn, pool_size=1) as own:
            barrier.wait(30)
            references = own.sync_push_many(
                note(number, key=str(key), on_conflict="replace") for key in keys
            )
            return sum(reference.created for reference in references)

    with ThreadPoolExecutor(PUSHERS) as threads:
        created = list(threads.map(push, range(PUSHERS)))
    assert sum(created) == 100
    assert ask(dsn, "select count(*) from chancy.jobs") == [(100,)]


# The same rule in SQL


@pytest.mark.parametrize("scope", ["function", "queue", "global"])
async def test_sql_and_python_have_the_same_keys(chancy: Chancy, dsn: str, scope: str) -> None:
    def push(key: str) -> Sequence[Any]:
        return ask(
            dsn,
            f"select chancy.push('async', 'tests.support.jobs.note', '{{\"value\": 1}}',"
            f" unique_key => '{key}', unique_scope => '{scope}')",
        )

    first = await chancy.push(note(1, key="é 'quoted'", scope=scope))
    assert push("é ''quoted''") == [(first.id,)]
    [(made,)] = push("of SQL")
    assert (await chancy.push(note(2, key="of SQL", scope=scope))).id == made
