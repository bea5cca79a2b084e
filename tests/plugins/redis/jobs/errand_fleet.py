"""Workers of `errands` in processes of their own, and the sums over their jobs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import redis

from chancy import Chancy, State
from chancy.broker.optional import SqlStore
from tests.plugins.redis.jobs.errands import QUEUE

ROOT = Path(__file__).parents[4]
#: Imported: the functions of a main module have other names.
RUN = "import asyncio; from tests.plugins.redis.jobs.errands import main; asyncio.run(main())"

Process = subprocess.Popen[bytes]


@contextmanager
def worker(dsn: str, url: str, log: Path) -> Generator[Process]:
    """A worker; it is killed at the end."""
    environment = {**os.environ, "CHANCY_DSN": dsn, "REDIS_URL": url, "PYTHONPATH": str(ROOT)}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def ready(process: Process) -> None:
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"


# Sums


def entries(book: Path) -> Counter[int]:
    """How often each number ran."""
    return Counter(map(int, book.read_text().split()))


async def rows(chancy: Chancy, table: str) -> int:
    assert isinstance(chancy.broker, SqlStore)
    ((count,),) = await chancy.broker.fetch(f"select count(*) from chancy.{table}")
    return int(count)


async def emptied(chancy: Chancy) -> bool:
    counts = (await chancy.counts()).get(QUEUE.name)
    return counts is None or sum(counts) == 0


async def archived(chancy: Chancy, number: int) -> bool:
    return await rows(chancy, "finished_jobs") >= number


def balanced(client: redis.Redis, tag: str = "{chancy:jobs:0}") -> int:
    """How many jobs Redis has, while nobody works; what it counts and what it has must agree."""
    with client.pipeline() as snapshot:
        for name in ("ids", "done", "dead", "due", f"r:{QUEUE.name}"):
            snapshot.zcard(f"{tag}:{name}")
        snapshot.hgetall(f"{tag}:n")
        ids, done, dead, due, waiting, raw = snapshot.execute()
    counts = {name.decode()[:1]: int(number) for name, number in raw.items()}
    held = sum(client.scard(key) for key in client.scan_iter(f"{tag}:w:*"))
    aside = sum(client.zcard(key) for key in client.scan_iter(f"{tag}:aside:*"))
    live = {"s": due, "p": waiting, "r": held, "h": aside}
    assert {name: number for name, number in live.items() if number} == counts
    assert ids == done + dead + due + waiting + held + aside, "pushed = ended + live"
    return int(ids)


async def check(chancy: Chancy, ids: Sequence[UUID], book: Path) -> Counter[State]:
    """Every job has its own end, and ran again only as often as it had crashed, which is once at
    most where one worker is cut off; gives how they ended."""
    assert await rows(chancy, "finished_jobs") == len(ids)
    history = await chancy.control.get(ids)
    assert len(history) == len(ids)
    runs = entries(book)
    assert any(one.crashes for one in history.values()), "the one that was cut off had nothing"
    for one in history.values():
        assert one.arguments is not None
        number = one.arguments["number"]
        assert 1 <= runs[number] <= 1 + one.crashes <= 2, (runs[number], one)
        assert one.state is (State.FAILED if number % 10 == 0 else State.SUCCEEDED), one
    return Counter(one.state for one in history.values())
