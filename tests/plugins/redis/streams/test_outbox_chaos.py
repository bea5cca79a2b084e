"""Relays of events that are killed and frozen: each event comes once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from chancy.broker.optional import SqlStore
from tests.plugins.redis.streams.orders import every, orders
from tests.plugins.redis.streams.outbox_member import LEASE_S, PARTITIONS, declare
from tests.support.waiting import eventually


class Crew:
    """Processes of `outbox_member`."""

    def __init__(self, dsn: str, url: str) -> None:
        self._arguments = [
            sys.executable,
            "-m",
            "tests.plugins.redis.streams.outbox_member",
            dsn,
            url,
        ]
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.processes.append(subprocess.Popen(self._arguments))

    def replace_dead(self) -> None:
        """Start a process, which also kills itself at random."""
        for process in list(self.processes):
            if process.poll() is not None:
                self.processes.remove(process)
                self.start()

    async def suffer(self, seconds: float) -> None:
        """Kill and freeze them."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0.1, 1.0))
            self.replace_dead()
            victim = random.choice(self.processes)
            if random.random() < 0.6:
                self.kill(victim)
                self.start()
            else:
                victim.send_signal(signal.SIGSTOP)
                await asyncio.sleep(LEASE_S * random.uniform(0.5, 2.5))
                victim.send_signal(signal.SIGCONT)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        process.kill()
        process.wait()


@pytest.fixture
def crew(dsn: str, redis_url: str) -> Iterator[Crew]:
    made = Crew(dsn, redis_url)
    yield made
    for process in list(made.processes):
        made.kill(process)


@pytest.mark.chaos
@pytest.mark.timeout(180)
async def test_relays_are_killed_and_frozen_in_a_loop(dsn: str, redis_url: str, crew: Crew) -> None:
    chancy, stream = declare(dsn, redis_url)
    sent: list[int] = []
    stop = asyncio.Event()

    async def commit() -> None:
        async with chancy.transaction() as tx:
            await stream.send(*orders(*range(len(sent), len(sent) + 8)), within=tx)
            await stream.send(*orders(*range(len(sent) + 8, len(sent) + 10)), within=tx)
        sent.extend(range(len(sent), len(sent) + 10))

    async def undo() -> None:
        async with chancy.transaction() as tx:
            await stream.send(*orders(*range(10**9, 10**9 + 10)), within=tx)
            raise ZeroDivisionError

    async def load() -> None:
        while not stop.is_set():
            await commit()
            if random.random() < 0.2:
                with contextlib.suppress(ZeroDivisionError):
                    await undo()
            await asyncio.sleep(0.05)

    async with chancy:
        await chancy.migrate()
        assert isinstance(chancy.broker, SqlStore)
        store = chancy.broker
        for _ in range(3):
            crew.start()
        loading = asyncio.create_task(load())
        await crew.suffer(10)
        stop.set()
        await loading

        async def empty() -> bool:
            crew.replace_dead()
            return not await store.fetch("select from chancy.redis_events limit 1")

        await eventually(empty, timeout=60)
        found = await every(stream)
    expected = [[id for id in sent if id % PARTITIONS == one] for one in range(PARTITIONS)]
    await stream.link.close()
    assert found == expected
