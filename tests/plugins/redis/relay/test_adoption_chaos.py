"""Workers are killed as they take jobs from Postgres to Redis."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from chancy import Chancy
from tests.plugins.redis.jobs.errand_fleet import archived, balanced, check, emptied, rows, worker
from tests.plugins.redis.jobs.errands import QUEUE, make
from tests.plugins.redis.relay.moving import arrived, fetch
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

NUMBER = 50
#: Steps of workflows, which stay in Postgres.
STEPS = 5


async def push(chancy: Chancy, book: Path) -> list[UUID]:
    pushed = await fetch(
        chancy,
        "select chancy.push('errands', 'tests.plugins.redis.jobs.errands.errand',"
        " jsonb_build_object('book', $1::text, 'number', n), max_attempts => 1,"
        " meta => case when n >= $2::int then '{\"workflow\": {}}'::jsonb end)"
        " from generate_series(0, $3::int - 1) as n",
        str(book),
        NUMBER,
        NUMBER + STEPS,
    )
    return [row[0] for row in pushed]


@pytest.mark.parametrize("where", ["relay:before:1", "relay:after:1", "relayed:before:1"])
async def test_a_worker_that_is_killed_leaves_each_job_once(
    dsn: str, own_redis: Callable[..., RedisServer], tmp_path: Path, where: str
) -> None:
    """Before the copy, between copy and deletion, and between deletion and the end of memory.

    Those that stay in Postgres have workers claim there too.
    """
    server, book = own_redis(), tmp_path / "book"
    book.touch()
    async with make(dsn, server.url) as chancy:
        await chancy.migrate()
        await chancy.declare(QUEUE)
        ids = await push(chancy, book)
        with worker(dsn, server.url, tmp_path / "log", FATAL=where) as process:
            await eventually(lambda: process.poll() is not None)
            assert process.returncode == -signal.SIGKILL, where
        with closing(server.client()) as client:
            copied = balanced(client)
        assert (await rows(chancy, "jobs"), await rows(chancy, "redis_moves"), copied) == {
            "relay:before:1": (NUMBER + STEPS, NUMBER, 0),
            "relay:after:1": (NUMBER + STEPS, NUMBER, NUMBER),
            "relayed:before:1": (STEPS, 0, NUMBER),
        }[where]
        with worker(dsn, server.url, tmp_path / "log"):
            await eventually(lambda: emptied(chancy), timeout=30.0)
            await eventually(lambda: arrived(chancy))
            await eventually(lambda: archived(chancy, NUMBER + STEPS), timeout=30.0)
        with closing(server.client()) as client:
            assert await asyncio.to_thread(balanced, client) == NUMBER
        ends = await check(chancy, ids, book)
        assert sum(ends.values()) == NUMBER + STEPS
