"""Round trips to Redis that a test delays, loses or counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall

Calls = Sequence[ScriptCall]
#: Sends the calls, and gives their replies.
Send = Callable[[], Awaitable[list[Any]]]
Chosen = Callable[[ScriptCall], bool]


def around(
    monkeypatch: pytest.MonkeyPatch, hook: Callable[[Calls, Send], Awaitable[list[Any]]]
) -> None:
    """Let this stand around each round trip of scripts, of all clients."""
    run, run_many = RedisClient.run, RedisClient.run_many

    async def one(link: RedisClient, script: str, keys: Any, args: Any = (), **more: Any) -> Any:
        async def send() -> list[Any]:
            return [await run(link, script, keys, args, **more)]

        [reply] = await hook([ScriptCall(script, tuple(keys), args)], send)
        return reply

    async def many(link: RedisClient, calls: Calls, **more: Any) -> list[Any]:
        return await hook(calls, lambda: run_many(link, calls, **more))

    monkeypatch.setattr(RedisClient, "run", one)
    monkeypatch.setattr(RedisClient, "run_many", many)


def lose(monkeypatch: pytest.MonkeyPatch, chosen: Chosen, times: int = 1) -> list[ScriptCall]:
    """Lose the replies to the first calls of a kind, which are done; gives those calls."""
    lost: list[ScriptCall] = []

    async def forgetful(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        found = [one for one in calls if chosen(one)]
        if found and len(lost) < times:
            lost.extend(found)
            raise BrokerUnavailable("the answer is lost")
        return replies

    around(monkeypatch, forgetful)
    return lost


def late(monkeypatch: pytest.MonkeyPatch, chosen: Chosen) -> asyncio.Event:
    """Let the first call of a kind reach the server a tenth of a second after it was sent, whoever
    waits for it then: a cancellation does not reach what is sent. Sets that it is."""
    sent = asyncio.Event()

    async def slow(calls: Calls, send: Send) -> list[Any]:
        async def do() -> list[Any]:
            if not sent.is_set() and any(map(chosen, calls)):
                sent.set()
                await asyncio.sleep(0.1)
            return await send()

        return await asyncio.shield(asyncio.create_task(do()))

    around(monkeypatch, slow)
    return sent


def impatient(monkeypatch: pytest.MonkeyPatch, timeout_s: float = 0.5) -> None:
    """Let commands time out soon, whatever the settings say."""
    commands = RedisConnection.commands

    async def soon(wire: RedisConnection, parts: Any, _: float) -> list[Any]:
        return await commands(wire, parts, timeout_s)

    monkeypatch.setattr(RedisConnection, "commands", soon)


def script(name: str) -> Chosen:
    """The calls of a script."""
    return lambda call: call.script == name
