"""Workers in processes of their own freeze and lose the line; sums over all jobs tell what became
of them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
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
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos


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

    def worker(self, url: str | None = None) -> AbstractContextManager[Process]:
        return worker(self.dsn, url or self.server.url, self.folder / "log")

    async def push(self, number: int) -> None:
        begin = len(self.ids)
        made = [errand.job(book=str(self.book), number=begin + n) for n in range(number)]
        self.ids += [one.id for one in await self.chancy.push_many(made)]

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


def runners(book: Path) -> Sequence[int]:
    """The processes that began a long errand, in order."""
    return [int(line) for line in book.read_text().split()]


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
        with errands.worker(url) as one:
            await ready(one)
            # More than it has ended when its line breaks: it has some in hand.
            await errands.push(200)
            await eventually(lambda: entries(errands.book))
            proxy.black_hole()
            with errands.worker() as other:
                await ready(other)
                began = time.monotonic()
                while (at := time.monotonic() - began) < 7.0:
                    if at > 5.0:
                        proxy.heal()
                    await errands.push(10)
                    await asyncio.sleep(0.1)
                await eventually(lambda: emptied(errands.chancy))
    await errands.end()
    ends = await check(errands.chancy, errands.ids, errands.book)
    assert sum(ends.values()) == len(errands.ids) > 300
    assert "worker_cut_off" in (errands.folder / "log").read_text(), "it was there"
