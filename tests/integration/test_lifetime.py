"""How often an application may be entered, and where."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Literal
from uuid import UUID

import psycopg
import pytest

from chancy import BrokerUnavailable, Chancy, NotOpen
from chancy.app.lifetime import Lifetime
from chancy.clock import SystemClock
from chancy.errors import ConfigurationError
from chancy.postgres.broker import PostgresBroker
from chancy.results.waiter import CompletionWaiter
from tests.support import jobs
from tests.support.sql import count


async def test_leaving_a_shared_context_keeps_it_open_for_the_others(dsn: str) -> None:
    chancy = Chancy(dsn)
    async with chancy:
        async with chancy:
            await chancy.push(jobs.note.job(1))
        await chancy.push(jobs.note.job(2))
    with pytest.raises(NotOpen):
        async with asyncio.timeout(5):  # and not after the patience of a push
            await chancy.push(jobs.note.job(3))


@pytest.mark.parametrize("size", [0, -1])
def test_without_a_session_for_callers_none_is_made(size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"pool_size={size} .*of at least 1"):
        Chancy("postgresql://localhost/shop", pool_size=size)


async def test_tasks_come_and_go(dsn: str) -> None:
    chancy = Chancy(dsn)

    async def request(number: int) -> None:
        for _ in range(20):
            async with chancy:
                await chancy.push(jobs.note.job(number))

    await asyncio.gather(*map(request, range(5)))
    async with chancy:
        assert (await chancy.counts())["async"].pending == 100


async def test_one_event_loop_at_a_time(dsn: str) -> None:
    chancy = Chancy(dsn)

    async def elsewhere() -> None:
        async with chancy:
            pass

    async with chancy:
        with pytest.raises(ConfigurationError, match="open in another event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        await chancy.push(jobs.note.job(1))
    await asyncio.to_thread(asyncio.run, elsewhere())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_call_in_another_event_loop_is_refused_before_it_is_sent(
    dsn: str, driver: Literal["asyncpg", "psycopg"]
) -> None:
    async with Chancy(dsn, driver=driver) as chancy:
        kept = await chancy.push(jobs.note.job(1))
        waiting = asyncio.create_task(kept.wait())
        for call in (
            lambda: chancy.push(jobs.note.job(2)),
            lambda: chancy.push_many([jobs.note.job(3)]),
            lambda: chancy.get_queues(),
            lambda: chancy.get_job(kept.id),
            lambda: chancy.wait_for(kept.id),
        ):
            with pytest.raises(ConfigurationError, match="open in another event loop"):
                await asyncio.to_thread(asyncio.run, call())
        assert (await chancy.counts())["async"].pending == 1
        await chancy.cancel(kept.id)
        assert (await waiting).id == kept.id


def test_an_opening_that_is_cancelled_leaves_no_connection_to_the_next_loop(dsn: str) -> None:
    chancy = Chancy(dsn)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await chancy.__aenter__()
        async with Chancy(dsn) as other:  # takes as long as the opening would have taken
            await other.counts()

    async def push() -> None:
        async with chancy:
            await chancy.push(jobs.note.job(1))

    asyncio.run(give_up())
    asyncio.run(push())


async def test_calls_of_an_application_that_is_not_open_connect_to_nothing(dsn: str) -> None:
    chancy = Chancy(dsn)
    with pytest.raises(NotOpen):
        await chancy.get_queues()


async def test_another_event_loop_needs_a_transaction_of_its_own(dsn: str) -> None:
    chancy = Chancy(dsn)
    in_transaction: list[UUID] = []

    async def calls() -> None:
        for call in (
            chancy.wait_for(first.id, 0.1),
            chancy.cancel(first.id),
            chancy.transaction().__aenter__(),
        ):
            with pytest.raises(ConfigurationError, match="open in another event loop"):
                await call
        # A transaction of its own is fine, also if the queue is not known yet.
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            misspelled = jobs.note.job(3).with_queue("anysc")
            in_transaction.append((await chancy.push(misspelled, within=connection)).id)

    async with chancy:
        first = await chancy.push(jobs.note.job(1))
        await asyncio.to_thread(asyncio.run, calls())
        await chancy.push(jobs.note.job(4))
        counts = await chancy.counts()
        assert (counts["async"].pending, counts["anysc"].pending) == (2, 1)
        assert await chancy.get_job(in_transaction[0]) is not None


async def test_an_application_that_could_not_be_opened_is_not_open(dsn: str) -> None:
    chancy = Chancy("postgresql://postgres@127.0.0.1:9/nothing")

    async def again() -> None:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
            await chancy.__aenter__()

    await again()
    await asyncio.to_thread(asyncio.run, again())


def test_threads_come_and_go(dsn: str) -> None:
    chancy = Chancy(dsn)

    def request(number: int) -> None:
        for _ in range(10):
            with chancy:
                chancy.sync_push(jobs.note.job(number))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(request, range(4)))
    with chancy:
        chancy.sync_push(jobs.note.job(5))
    assert count(dsn) == 41
    with pytest.raises(ConfigurationError, match="inside such a block"):
        chancy.sync_push(jobs.note.job(6))


def test_a_process_that_is_forked_has_sessions_of_its_own(dsn: str) -> None:
    code = f"""
import os, threading
from chancy import Chancy
from tests.support import jobs

with Chancy({dsn!r}) as chancy:
    chancy.sync_push(jobs.note.job(0))
    children = []
    for child in range(3):
        if not (pid := os.fork()):
            for number in range(50):
                reference = chancy.sync_push(jobs.note.job(number))
                assert chancy.sync_get_job(reference.id).id == reference.id
            os._exit(0)
        children.append(pid)
    for number in range(50):
        reference = chancy.sync_push(jobs.note.job(number))
        assert chancy.sync_get_job(reference.id).id == reference.id
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert count(dsn) == 201


def test_the_first_sync_call_opens_the_application_until_the_process_ends(dsn: str) -> None:
    code = f"""
import atexit, os, threading, time
import psycopg
from chancy import Chancy, Queue
from tests.support import jobs

def sessions():
    with psycopg.connect({dsn!r}) as session:
        query = (
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name like 'chancy%'"
        )
        return session.execute(query).fetchone()[0]

def remaining():
    # A backend ends slightly later than the client's close returns.
    until = time.monotonic() + 10
    while (found := sessions()) and time.monotonic() < until:
        time.sleep(0.01)
    return found

def push():
    reference = chancy.sync_push(jobs.note.job(0))
    assert chancy.sync_get_job(reference.id).id == reference.id

chancy = Chancy({dsn!r}, queues=[Queue("async", executor="async")])
atexit.register(lambda: print("at the end", remaining()))
threads = [threading.Thread(target=push) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with chancy:
    push()
push()
print("open", sessions() > 0, flush=True)
if not (pid := os.fork()):
    push()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("open True\nat the end 0\n", "")
    assert count(dsn) == 7


class Unwilling(CompletionWaiter):
    """What cannot be closed."""

    async def close(self) -> None:
        raise RuntimeError("it does not end")


async def test_a_failing_close_does_not_leave_other_resources_open(dsn: str) -> None:
    broker = PostgresBroker(dsn)
    opening = Lifetime(broker, Unwilling(broker, SystemClock()))
    await opening.enter()
    with pytest.raises(RuntimeError, match="does not end"):
        await opening.leave()
    with pytest.raises(NotOpen):
        await broker.fetch("select 1")
