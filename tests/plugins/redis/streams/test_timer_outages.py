"""What runs on the leader, while Redis is away for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugin.leader import Unelected
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import timers
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as made:
        yield made


@pytest.fixture
def streams(proxy: Proxy) -> Streams:
    """Those of a worker that reaches Redis through the proxy."""
    return Streams(RedisSettings(url=f"redis://127.0.0.1:{proxy.port}/0", prefix="t:"))


@pytest.fixture
async def direct(server: RedisServer) -> AsyncIterator[RedisClient]:
    """Past the proxy."""
    made = RedisClient(RedisSettings(url=server.url, prefix="t:"))
    yield made
    await made.close()


async def away(proxy: Proxy, seconds: float, gone: asyncio.Event | None = None) -> None:
    """Let the server be away for a while; sets that it is."""
    await asyncio.to_thread(proxy.refuse)
    await asyncio.to_thread(proxy.cut)
    if gone is not None:
        gone.set()
    await asyncio.sleep(seconds)
    await asyncio.to_thread(proxy.heal)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.row("R34")
async def test_a_task_that_is_done_is_not_done_again_because_redis_was_away(
    streams: Streams, proxy: Proxy, direct: RedisClient
) -> None:
    ran = 0
    outage: list[asyncio.Task[None]] = []

    async def work() -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            gone = asyncio.Event()
            outage.append(asyncio.create_task(away(proxy, 0.4, gone)))
            await gone.wait()

    streams.task(on_leader=True, name="once")(work)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))

    async def done() -> bool:
        return bool(await direct.command("HGET", "{t:st}:done", "once") == b"done")

    try:
        await eventually(done)
        assert ran == 1
    finally:
        await asyncio.wait(outage)
        await stop(serving)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let it be a moment before nine o'clock when a crontab first looks, which sets this."""
    first, zero = asyncio.Event(), 0.0

    class Moved:
        @staticmethod
        def now(_: tzinfo) -> datetime:
            nonlocal zero
            if not first.is_set():
                first.set()
                zero = time.monotonic()
            moment = datetime(2031, 3, 2, 8, 59, 59, 800_000, tzinfo=UTC)
            return moment + timedelta(seconds=time.monotonic() - zero)

    monkeypatch.setattr(timers, "datetime", Moved)
    return first


def at_nine(streams: Streams) -> list[str]:
    """Gives what has fired."""
    fired: list[str] = []

    async def nine() -> None:
        fired.append("nine")

    async def behind() -> None:
        fired.append("behind")

    streams.crontab("0 9 * * *", on_leader=True, name="nine")(nine)
    # What was to fire twice would have done so.
    streams.crontab("0 9 * * * 1", on_leader=True, name="behind")(behind)
    return fired


@pytest.mark.row("R36")
async def test_a_tick_is_fired_though_redis_is_unavailable_at_that_time(
    streams: Streams, proxy: Proxy, asked: asyncio.Event
) -> None:
    fired = at_nine(streams)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))
    try:
        await asked.wait()
        await away(proxy, 1.0)
        await eventually(lambda: sorted(fired) == ["behind", "nine"])
    finally:
        await stop(serving)


@pytest.mark.row("R36")
@pytest.mark.usefixtures("asked")
async def test_a_tick_is_fired_once_though_the_answer_is_lost(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired, command, lost = at_nine(streams), RedisClient.command, list[str]()

    async def forgetful(link: RedisClient, *parts: Any) -> Any:
        answer = await command(link, *parts)
        if parts[0] == "SET" and str(parts[1]) not in lost:
            lost.append(str(parts[1]))
            raise BrokerUnavailable("the answer is lost")
        return answer

    monkeypatch.setattr(RedisClient, "command", forgetful)
    serving = asyncio.create_task(streams.serve(leader=Unelected()))
    try:
        await eventually(lambda: "behind" in fired)
        assert fired == ["nine", "behind"]
        assert len(lost) == 2
    finally:
        await stop(serving)
