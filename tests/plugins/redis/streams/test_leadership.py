"""Who leads where there is no worker: real processes that are killed and ended."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.leading_member import HERE, LEASE_S, NOTES
from tests.support.waiting import eventually

#: Seconds between two questions for the lead at most; see `RedisGate`.
POLL_S = LEASE_S / 4 * 1.2
#: Seconds for which what is ready may wait for a processor of a busy machine.
SLACK_S = 1.0


class Crew:
    """Processes of `leading_member`, and what they have noted."""

    def __init__(self, url: str) -> None:
        self.link = RedisClient(RedisSettings(url=url, prefix="t:"))
        self._command = [sys.executable, "-m", "tests.plugins.redis.streams.leading_member", url]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        process = subprocess.Popen(self._command)
        self.processes[process.pid] = process

    async def here(self) -> bool:
        """Whether all have begun."""
        return bool(await self.link.command("SCARD", HERE) == len(self.processes))

    async def notes(self) -> Sequence[tuple[int, float]]:
        """Who led when, by the clock of the server."""
        lines: Any = await self.link.command("LRANGE", NOTES, 0, -1)
        found = [tuple(map(int, line.split())) for line in lines]
        return [(pid, seconds + micros / 1e6) for pid, seconds, micros in found]

    async def leader(self, other_than: int = 0) -> int:
        """Who noted last, when it is not that one."""

        async def leads() -> int:
            notes = await self.notes()
            return notes[-1][0] if notes and notes[-1][0] != other_than else 0

        return await eventually(leads)

    async def gap_s(self, before: int, after: int) -> float:
        """Seconds between the last note of one and the first of another."""
        notes = await self.notes()
        first = next(at for pid, at in notes if pid == after)
        return first - max(at for pid, at in notes if pid == before)

    async def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        await self.link.close()


@pytest.fixture
async def crew(redis_url: str) -> AsyncIterator[Crew]:
    made = Crew(redis_url)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.chaos
@pytest.mark.row("R33", "R37")
async def test_one_process_leads_until_it_is_killed_or_ends(crew: Crew) -> None:
    """After a kill the next one follows within the lease and a question for it; after an end it
    need not wait for the lease."""
    for _ in range(3):
        crew.start()
    await eventually(crew.here)
    first = await crew.leader()
    crew.processes[first].kill()
    second = await crew.leader(other_than=first)
    assert await crew.gap_s(first, second) < LEASE_S + POLL_S + SLACK_S
    crew.processes[second].terminate()
    third = await crew.leader(other_than=second)
    # Of a lease whose holder asks so often 0.7 are left at any time.
    assert await crew.gap_s(second, third) < LEASE_S * 0.7
    assert await asyncio.to_thread(crew.processes[second].wait, 10) == 0
    led = [pid for pid, _ in itertools.groupby(await crew.notes(), lambda note: note[0])]
    assert led == [first, second, third], "two have led at a time"


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
