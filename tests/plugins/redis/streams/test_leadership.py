"""Leadership without a worker: who takes over once the leader has died or ended."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.transport.redis_client import RedisClient


@pytest.mark.row("R33")
async def test_a_lead_that_was_asked_for_before_the_end_is_given_up_behind_it(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may hear the question after the farewell: nobody would lead for a lease."""
    call, sent = RedisClient.run, asyncio.Event()

    async def slow_call(
        link: RedisClient, script: str, keys: Any, args: Any = (), **more: Any
    ) -> Any:
        async def late() -> Any:
            if args[1]:
                sent.set()
                await asyncio.sleep(0.1)
            return await call(link, script, keys, args, **more)

        # A cancellation does not reach what is sent.
        return await asyncio.shield(asyncio.create_task(late()))

    monkeypatch.setattr(RedisClient, "run", slow_call)
    ending = asyncio.create_task(RedisGate(alone, lease_s=60.0).serve())
    await sent.wait()
    ending.cancel()
    await asyncio.wait([ending])
    await asyncio.sleep(0.2)
    assert await call(alone, "streams.lead", ["{t:st}:lead"], ["another", 60_000]) == 2


@pytest.mark.row("R33")
async def test_another_leads_once_the_lease_of_one_that_died_has_ended(alone: RedisClient) -> None:
    began = time.monotonic()
    assert await alone.run("streams.lead", ["{t:st}:lead"], ["died", 500]) == 1
    gate = RedisGate(alone, lease_s=0.8)
    serving = asyncio.create_task(gate.serve())
    assert await asyncio.wait_for(gate.wait(), 10) == 2
    assert time.monotonic() - began > 0.45
    serving.cancel()
    await asyncio.wait([serving])
