"""Processes that push and cancel die at each of their scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from chancy import State
from tests.plugins.redis.jobs.errand_fleet import ROOT, archived, balanced, check, ready, worker
from tests.plugins.redis.jobs.errands import QUEUE, make
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

RUN = (
    "import asyncio, os; from tests.plugins.redis.jobs.fatal_points import arm;"
    " arm(os.environ['FATAL']);"
    " from tests.plugins.redis.jobs.errands import push_for_ever; asyncio.run(push_for_ever())"
)
#: A job alone, jobs together that are alike, one that is not to run at once, and its cancelling.
SCRIPTS = ("push_one", "push_plain", "push", "cancel")
#: Pushed in one call at the most.
CALL = 3


def push(dsn: str, url: str, folder: Path, **more: str) -> int:
    """How a process ended that pushed until it died."""
    about = {"CHANCY_DSN": dsn, "REDIS_URL": url, "PYTHONPATH": str(ROOT)}
    places = {"BOOK": str(folder / "book"), "TOLD": str(folder / "told")}
    with (folder / "pushers").open("ab") as errors:
        return subprocess.run(
            [sys.executable, "-c", RUN],
            cwd=ROOT,
            env={**os.environ, **about, **places, **more},
            stderr=errors,
            timeout=30,
            check=False,
        ).returncode


def stored(server: RedisServer) -> Sequence[UUID]:
    with closing(server.client()) as client:
        found = command_sync(client, "ZRANGE", "{chancy:jobs:0}:ids", 0, -1)
    return [UUID(bytes=id) for id in found]


async def test_a_push_of_a_killed_process_is_stored_as_a_whole(
    dsn: str, own_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """All that it was told of, and of the last call all or nothing; each runs once."""
    server = own_redis()
    for name in ("book", "told"):
        (tmp_path / name).touch()
    async with make(dsn, server.url) as chancy:
        await chancy.migrate()
        await chancy.declare(QUEUE)
        deaths = 0
        with worker(dsn, server.url, tmp_path / "log") as one:
            await ready(one)
            for script in SCRIPTS:
                for moment in ("before", "after"):
                    deaths += 1
                    told = (tmp_path / "told").read_text().split()
                    before = len(stored(server)) - len(told)
                    code = push(
                        dsn,
                        server.url,
                        tmp_path,
                        FATAL=f"{script}:{moment}:2",
                        BEGIN=str(1_000 * deaths + 1),
                    )
                    assert code == -signal.SIGKILL, (script, moment)
                    told = (tmp_path / "told").read_text().split()
                    ids = stored(server)
                    assert {UUID(hex=id) for id in told} <= set(ids)
                    untold = {"push_one": 1, "push_plain": CALL, "push": 1}.get(script, 0)
                    wanted = untold if moment == "after" else 0
                    assert len(ids) - len(told) - before == wanted, (script, moment)
            ids = stored(server)
            # What it did not come to cancel waits for its time.
            await chancy.cancel(*ids)
            await eventually(lambda: archived(chancy, len(ids)))
        with closing(server.client()) as client:
            assert balanced(client) == len(ids)
        ends = await check(chancy, ids, tmp_path / "book")
        assert ends[State.SUCCEEDED] > len(ids) // 3
