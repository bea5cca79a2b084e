"""Services for tests, which record in Redis what they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any

import redis

from chancy.plugins.redis.services import BlockingContext, Context, Service, ServiceReport, Services
from chancy.plugins.redis.services.leases import Leases, Taken
from chancy.plugins.redis.settings import RedisSettings

#: The default lease of workers: a machine that is busy for seconds loses none, so that services
#: start exactly as often as a test expects.
_LASTING_S = 10.0
#: A lease whose end a test can await. A busy machine may lose it, and services start again.
LEASE_S = 1.5
TICK_S = 0.01


class Beat(Service):
    """Ticks until it is stopped: into the list ``ticks:ID``, with its process and the time."""

    name = "beat"

    async def start(self, ctx: Context) -> None:
        note(ctx.id, f"begin {ctx.data.get('pace', '')}")
        note(f"course:{ctx.id}", "begin")
        while not await ctx.wait(TICK_S):
            tick(ctx.id)
            if "file" in ctx.data:
                with open(ctx.data["file"], "a") as file:  # noqa: ASYNC230 - a line is written at once
                    file.write(f"{time.time()}\n")
        note(f"course:{ctx.id}", "end")

    async def stop(self) -> None: ...


class ThreadBeat(Service):
    """`Beat` in a thread, without a check whether it must stop."""

    name = "thread-beat"

    def start(self, ctx: BlockingContext) -> None:
        note(ctx.id, "begin")
        while True:
            time.sleep(TICK_S)
            tick(ctx.id)


class Give(Service):
    """Ends at once with the result in its data."""

    name = "give"

    async def start(self, ctx: Context) -> Any:
        note("given", ctx.id)
        match ctx.data:
            case {"error": str(text)}:
                raise self.Error(text)
            case {"raise": str(text)}:
                raise ValueError(text)
            case _:
                return ctx.data.get("value")


class Nap(Service):
    """Sleeps in a thread for the seconds in its data."""

    name = "nap"

    def start(self, ctx: BlockingContext) -> str:
        ctx.wait(float(ctx.data.get("s", 0.3)))
        return "slept"


class Compute(Service):
    """Blocks the event loop for the seconds in its data."""

    name = "compute"

    async def start(self, ctx: Context) -> int:
        note(ctx.id, "begin")
        till = time.monotonic() + ctx.data["s"]
        count = 0
        while time.monotonic() < till:
            count += 1
        return count


class Stuck(Service):
    """Has a ``stop`` that blocks the event loop for ever."""

    name = "stuck"

    async def start(self, ctx: Context) -> None:
        self.id = ctx.id
        note(ctx.id, "begin")
        await asyncio.sleep(60)

    async def stop(self) -> None:
        note(self.id, "stop")
        while True:
            time.sleep(0.01)  # noqa: ASYNC251 - that is what it is for


class Tell(Service):
    """Publishes an event."""

    name = "tell"

    async def start(self, ctx: Context) -> str:
        await ctx.emit("news", {"a": 1})
        return "told"


KINDS: tuple[type[Service], ...] = (Beat, ThreadBeat, Give, Nap, Compute, Stuck, Tell)

_notes: redis.Redis | redis.RedisCluster | None = None


def connect_notes(url: str, *, cluster: bool) -> Any:
    """Connect the client with which services of this process write notes; close it."""
    global _notes
    made: redis.Redis | redis.RedisCluster
    if cluster:
        made = redis.RedisCluster.from_url(url, protocol=2)
    else:
        made = redis.Redis.from_url(url, protocol=2)
    _notes = made
    return made


def note(name: str, text: str) -> None:
    assert _notes is not None
    with contextlib.suppress(redis.RedisError):
        _notes.rpush(f"note:{name}", text)


def tick(id: str) -> None:
    assert _notes is not None
    with contextlib.suppress(redis.RedisError):
        _notes.rpush(f"ticks:{id}", json.dumps([os.getpid(), time.time()]))


def declare(url: str, *, cluster: bool = False, **terms: Any) -> Services:
    made = Services(RedisSettings(url=url, cluster=cluster, prefix="t:"))
    options: dict[str, Any] = {"lease_s": _LASTING_S, "grace_s": 3.0} | terms
    made.configure(**options)
    for kind in KINDS:
        made.service(kind)
    return made


def take(ledger: Leases) -> Taken:
    """Claim the next service."""
    (taken,) = ledger.claim(1)
    assert isinstance(taken, Taken)
    return taken


@dataclass
class Shop:
    """Services with workers in this process, and a client to look with."""

    url: str
    cluster: bool
    services: Services
    raw: Any

    @contextlib.asynccontextmanager
    async def worker(self, services: Services | None = None) -> AsyncGenerator[Services]:
        """Run one more worker, which is stopped at the end as by SIGTERM."""
        made = services or declare(self.url, cluster=self.cluster)
        task = asyncio.create_task(made.serve())
        try:
            yield made
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            made.close()

    def declare(self, **terms: Any) -> Services:
        return declare(self.url, cluster=self.cluster, **terms)

    async def found(self, id: str) -> ServiceReport:
        found = await self.services.get(id)
        assert found is not None
        return found

    async def state(self, id: str) -> str | None:
        found = await self.services.get(id)
        return None if found is None else found.state.value

    def is_state(self, id: str, state: str | None) -> Callable[[], Any]:
        async def look() -> bool:
            return await self.state(id) == state

        return look

    def ticks(self, id: str) -> list[tuple[int, float]]:
        return [(pid, at) for pid, at in map(json.loads, self.raw.lrange(f"ticks:{id}", 0, -1))]

    def has_ticked(self, id: str) -> bool:
        return len(self.ticks(id)) > 3

    def is_begun(self, id: str) -> bool:
        return bool(self.raw.hget(self.services.keys.of(id), "state") == b"RUNNING")

    def is_course(self, id: str, course: list[str]) -> bool:
        return self.notes(f"course:{id}") == course

    def notes(self, name: str) -> list[str]:
        return [one.decode() for one in self.raw.lrange(f"note:{name}", 0, -1)]

    @property
    def waiting(self) -> list[str]:
        """The queue, the next id first."""
        keys = self.services.keys
        return [one.decode() for one in reversed(self.raw.lrange(keys.waiting, 0, -1))]


@contextlib.contextmanager
def shop(url: str, *, cluster: bool) -> Generator[Shop]:
    raw = connect_notes(url, cluster=cluster)
    services = declare(url, cluster=cluster)
    try:
        yield Shop(url, cluster, services, raw)
    finally:
        services.close()
        if cluster:
            raw.disconnect_connection_pools()
        raw.close()
