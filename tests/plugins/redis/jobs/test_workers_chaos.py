"""Workers in processes of their own die where it hurts, freeze, lose the line, and have wrong
clocks; sums over all jobs tell what became of them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from chancy import Chancy, State
from tests.plugins.redis.jobs.errand_fleet import (
    Process,
    archived,
    balanced,
    check,
    emptied,
    entries,
    ready,
    worker,
)
from tests.plugins.redis.jobs.errands import QUEUE, errand, long_errand, make
from tests.support.faketime import faketime
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

#: After which a worker of these is taken for dead.
TIMEOUT_S = 1.0
#: Where a worker dies: scripts that change jobs, and that tell Postgres of them; and as it hears
#: of a job that a push gave it.
BOUNDARIES = (
    ("claim:before:2", "claim:after:2"),
    ("settle:before:2", "settle:after:2"),
    ("promote:before:3", "promote:after:3"),
    ("orphans:before:1", "orphans:after:1"),
    ("unarchived:after:1", "archived:before:1"),
    ("register:after:1", "archived:after:1"),
    ("update_meta:before:1", "update_meta:after:1"),
    ("recover:before:1", "recover:after:1"),
)


@dataclass
class Errands:
    """An application whose jobs write into a book, and the jobs that were pushed."""

    chancy: Chancy
    dsn: str
    server: RedisServer
    folder: Path
    ids: list[UUID] = field(default_factory=list)

    @property
    def book(self) -> Path:
        return self.folder / "book"

    def worker(self, url: str | None = None, **more: str) -> AbstractContextManager[Process]:
        return worker(self.dsn, url or self.server.url, self.folder / "log", **more)

    async def push(self, number: int, *, within: bool = False, delay_s: float = 0.0) -> None:
        begin = len(self.ids)
        made = [errand.job(book=str(self.book), number=begin + n) for n in range(number)]
        if delay_s:
            made = [one.with_delay(timedelta(seconds=delay_s)) for one in made]
        if within:
            async with self.chancy.transaction() as tx:
                references = await self.chancy.push_many(made, within=tx)
        else:
            references = await self.chancy.push_many(made)
        self.ids += [one.id for one in references]

    async def push_one(self) -> None:
        """Alone: a worker that waits is given it."""
        made = errand.job(book=str(self.book), number=len(self.ids))
        self.ids.append((await self.chancy.push(made)).id)

    async def end(self, timeout: float = 30.0) -> None:
        """Let one worker do what is left, and look at the sums."""
        with self.worker():
            await eventually(lambda: emptied(self.chancy), timeout=timeout)
            await eventually(lambda: archived(self.chancy, len(self.ids)), timeout=timeout)
        with closing(self.server.client()) as client:
            assert balanced(client) == len(self.ids)


@pytest.fixture
async def errands(
    dsn: str, own_redis: Callable[..., RedisServer], tmp_path: Path
) -> AsyncIterator[Errands]:
    server = own_redis()
    (tmp_path / "book").touch()
    async with make(dsn, server.url) as chancy:
        await chancy.migrate()
        await chancy.declare(QUEUE)
        yield Errands(chancy, dsn, server, tmp_path)


async def fell(process: Process, where: str) -> None:
    """Await its death."""

    def died() -> bool:
        assert process.poll() is not None, f"not at {where}"
        return True

    await eventually(died)
    assert process.returncode == -signal.SIGKILL, where


async def test_a_kill_at_every_script_loses_nothing(errands: Errands) -> None:
    """After each death: pushed = succeeded + failed + cancelled + live."""
    for first, second in BOUNDARIES:
        with (
            errands.worker(FATAL=first) as one,
            errands.worker(FATAL=second) as other,
        ):
            began = time.monotonic()
            while one.poll() is None or other.poll() is None:
                assert time.monotonic() - began < 20, (first, one.poll(), second, other.poll())
                await errands.push(3)
                await errands.push(2, delay_s=0.1)
                await asyncio.sleep(0.1)
                await errands.push_one()
            assert one.returncode == other.returncode == -signal.SIGKILL
        with closing(errands.server.client()) as client:
            assert balanced(client) == len(errands.ids), (first, second)
    await errands.end()
    ends = await check(errands.chancy, errands.ids, errands.book)
    assert ends[State.SUCCEEDED] > len(errands.ids) // 2


def runners(book: Path) -> Sequence[int]:
    """The processes that began a long errand, in order."""
    return [int(line) for line in book.read_text().split()]


async def test_a_long_job_is_not_given_to_another_while_its_worker_sends_heartbeats(
    errands: Errands,
) -> None:
    """It holds up the loop of its worker for three times the timeout."""
    job = long_errand.job(book=str(errands.book), seconds=3 * TIMEOUT_S)
    with errands.worker() as one, errands.worker() as other:
        for process in (one, other):
            await ready(process)
        reference = await errands.chancy.push(job)
        done = await reference.wait(20)
    assert (done.state, done.attempt, done.crashes) == (State.SUCCEEDED, 1, 0)
    assert runners(errands.book) == [done.result]


@pytest.mark.row("F42")
async def test_of_a_frozen_worker_and_its_successor_one_wins(errands: Errands) -> None:
    """Frozen for longer than the lease, it wakes up and ends a job that another has ended."""
    job = long_errand.job(book=str(errands.book), seconds=0.5)
    with errands.worker() as one, errands.worker() as other:
        processes = {process.pid: process for process in (one, other)}
        for process in (one, other):
            await ready(process)
        for turn in range(1, 4):
            reference = await errands.chancy.push(job)
            await eventually(lambda: len(runners(errands.book)) == 2 * turn - 1)  # noqa: B023
            frozen = processes[runners(errands.book)[-1]]
            frozen.send_signal(signal.SIGSTOP)
            done = await reference.wait(20)
            assert done.result == runners(errands.book)[-1] != frozen.pid
            frozen.send_signal(signal.SIGCONT)
            # It works again, under another id, when it has found out.
            later = await asyncio.gather(
                *[errands.chancy.push(errand.job(book="/dev/null", number=1)) for _ in range(40)]
            )
            for each in later:
                assert (await each.wait(20)).state is State.SUCCEEDED
            after = await errands.chancy.get_job(reference.id)
            assert after is not None
            assert (after.state, after.result, after.crashes) == (State.SUCCEEDED, done.result, 1)
    assert len(runners(errands.book)) == 6


async def test_nothing_is_lost_in_a_black_hole(errands: Errands) -> None:
    """For five seconds nothing gets through between Redis and one of two workers."""
    with Proxy("127.0.0.1", errands.server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        with errands.worker(url) as one, errands.worker() as other:
            for process in (one, other):
                await ready(process)
            began = time.monotonic()
            while (at := time.monotonic() - began) < 8.0:
                (proxy.black_hole if 1.0 < at < 6.0 else proxy.heal)()
                await errands.push(10)
                await asyncio.sleep(0.1)
            proxy.heal()
            await eventually(lambda: emptied(errands.chancy))
    await errands.end()
    ends = await check(errands.chancy, errands.ids, errands.book)
    assert sum(ends.values()) == len(errands.ids) > 300
    assert "worker_cut_off" in (errands.folder / "log").read_text(), "it was there"


async def test_wrong_clocks_of_workers_mean_nothing(errands: Errands) -> None:
    """One is five minutes ahead, the other five behind."""
    library = faketime()
    # A clock that is set does not move the monotonic one.
    same = {"LD_PRELOAD": library, "DONT_FAKE_MONOTONIC": "1"}
    fakes = [same | {"FAKETIME": fake} for fake in ("+5m", "-5m")]
    with errands.worker(**fakes[0]) as one, errands.worker(**fakes[1]) as other:
        for process in (one, other):
            await ready(process)
        await errands.push(60)
        await errands.push(60, delay_s=1.5)
        await eventually(lambda: emptied(errands.chancy), timeout=30.0)
        await eventually(lambda: archived(errands.chancy, 120))
    history = await errands.chancy.control.get(errands.ids)
    for one_job in history.values():
        assert one_job.crashes == 0, "nobody was taken for dead"
        assert one_job.claimed_at is not None
        assert one_job.run_at is None or one_job.claimed_at >= one_job.run_at, "none is early"
        assert one_job.finished_at is not None
        waited_s = (one_job.finished_at - one_job.pushed_at).total_seconds()
        assert 0 < waited_s < 20, "and none is late"
    assert set(entries(errands.book).values()) == {1}
