"""What stands around a queue in Redis: commands, hooks, the sandbox of tests, connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services import Service
from chancy.plugins.redis.streams.processing.events import Events
from chancy.testing.sandbox import Sandbox
from tests.plugins.redis.relay.moving import FAST, application
from tests.plugins.redis.streams.fleet import Order
from tests.support import jobs
from tests.support.command import Answer, inside
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

SHOP = """
from chancy import Chancy, Queue
from chancy.plugins.redis import RedisPlugin

FAST = Queue(name="fast", executor="async", broker="redis")
chancy = Chancy(queues=[FAST], plugins=[RedisPlugin(url={url!r})])
"""


async def test_a_sandbox_needs_no_redis() -> None:
    jobs.noted.clear()
    queue = Queue(name="fast", executor="async", broker="redis")
    away = RedisPlugin(url="redis://nowhere.invalid:1")
    chancy = Chancy("postgresql://nowhere.invalid/none", queues=[queue], plugins=[away])
    async with Sandbox(chancy) as sandbox:
        await chancy.push(jobs.note.job(value=3).with_queue("fast"))
        sandbox.assert_pushed(jobs.note, value=3, times=1)
        [done] = await sandbox.drain()
    assert (done.state, done.result, jobs.noted) == (State.SUCCEEDED, 3, [3])


async def test_commands_tell_of_jobs_and_queues(
    dsn: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_redis.py").write_text(SHOP.format(url=redis_url))
    monkeypatch.syspath_prepend(tmp_path)

    async def run(*words: object) -> Answer:
        return await asyncio.to_thread(inside, *words, dsn=dsn, app="shop_redis:chancy")

    async with application(dsn, redis_url) as chancy:
        waiting = await chancy.push(jobs.note.job(value=1).with_queue(FAST.name))
        await run("queue", "pause", "fast")
        shown = await run("job", "show", waiting.id, "--json")
        why = await run("job", "why", waiting.id, "--json")
        listed = await run("job", "list", "--queue", "fast", "--json")
        queues = await run("queue", "list", "--json")
        assert (shown.json["state"], shown.json["queue"]) == ("pending", "fast")
        assert "paused" in why.out
        assert [one["id"] for one in listed.json] == [str(waiting.id)]
        [fast] = [one for one in queues.json if one["name"] == "fast"]
        assert (fast["paused"], fast["pending"]) == (True, 1)
        await run("queue", "resume", "fast")
        await run("job", "cancel", waiting.id)
        assert await waiting.status() is State.CANCELLED


async def test_unknown_counts_of_a_queue_are_not_shown_as_zero(
    dsn: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while its broker is away, nor without the application that has it."""
    (tmp_path / "shop_away.py").write_text(SHOP.format(url="redis://127.0.0.1:1"))
    monkeypatch.syspath_prepend(tmp_path)

    async def listed(*words: str, code: int, **settings: str) -> Answer:
        return await asyncio.to_thread(
            inside, "queue", "list", *words, code=code, dsn=dsn, **settings
        )

    async with application(dsn, redis_url) as chancy:
        await chancy.declare(FAST)
        for name in ("default", FAST.name):
            await chancy.push(jobs.note.job(value=1).with_queue(name))
    away = await listed("--json", code=4, app="shop_away:chancy")
    told = await listed(code=4, app="shop_away:chancy")
    unnamed = await listed("--json", code=0)
    for answer in (away, unnamed):
        known = {one["name"]: [one["pending"], one["running"]] for one in answer.json}
        assert known == {"fast": [None, None], "default": [1, 0]}
    assert "the broker redis is unavailable: " in away.err
    assert "the broker redis is unavailable: " in told.err
    [fast] = [line for line in told.out.splitlines() if line.startswith("fast")]
    assert fast.split()[-3:] == ["-", "-", "-"]
    assert "queue fast: this application has no broker redis: pass the --app" in unnamed.err


class Idle(Service):
    name = "idle"

    async def start(self, ctx: object) -> None: ...


@pytest.mark.parametrize(
    ("processors", "services"),
    [(0, False), (5, False), (5, True)],
    ids=["jobs", "five processors", "five processors and services"],
)
async def test_an_idle_worker_opens_few_connections(
    dsn: str,
    redis_server: RedisServer,
    redis_url: str,
    processors: int,
    services: bool,
) -> None:
    """For commands, for heartbeats, and for all that it waits for."""
    redis = RedisPlugin(url=redis_url, prefix="t:")
    orders = redis.streams.stream("orders", record=Order, partition_by="key", partitions=4)
    seen = Counter[str]()
    for number in range(processors):

        @redis.streams.processor(orders, name=f"p{number}", join_delay_s=0, lease_s=2)
        async def handle(events: Events[Order], name: str = f"p{number}") -> None:
            async for _ in events.records():
                seen[name] += 1

    if services:
        redis.services.service(Idle)
    queue = Queue(name="mail", executor="async", broker="redis")
    with closing(redis_server.client()) as client:

        def chancys() -> list[object]:
            listed = command_sync(client, "CLIENT LIST")
            return [each for each in listed if each["name"] == "chancy"]

        async with Chancy(dsn, plugins=[redis], queues=[queue]) as chancy, Worker(chancy):
            await orders.send(*(Order(key=n, seq=n) for n in range(20)))
            # Again, perhaps, as the leases are short.
            await eventually(lambda: seen.total() >= 20 * processors)
            await eventually(lambda: len(chancys()) <= 3)
