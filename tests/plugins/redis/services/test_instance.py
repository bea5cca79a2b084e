"""One instance of a service: what stands around it, how it stops, and that it is alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Generator
from functools import partial
from operator import contains

import pytest

from chancy.app.app import Chancy
from chancy.errors import LeaseLost
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services import BlockingContext, Context, Service
from chancy.worker.worker import Worker
from tests.plugins.redis.services.shop import LEASE_S, Beat, Shop, connect_notes
from tests.support.waiting import eventually

course: list[str] = []


class Surrounded(Service):
    name = "surrounded"

    def __init__(self) -> None:
        course.append("made")

    @classmethod
    @contextlib.asynccontextmanager
    async def provide_context(cls) -> AsyncGenerator[None]:
        course.append("in")
        yield
        course.append("out")

    async def start(self, ctx: Context) -> None:
        course.append("started")
        await ctx.wait(60)

    async def stop(self) -> None:
        course.append("stopping")


class SurroundedThread(Service):
    name = "surrounded-thread"

    @classmethod
    @contextlib.contextmanager
    def provide_context(cls) -> Generator[None]:
        course.append("in")
        yield
        course.append("out")

    def start(self, ctx: BlockingContext) -> None:
        course.append("started")
        ctx.wait(60)

    def stop(self) -> None:
        course.append("stopping")


@pytest.mark.row("P38")
async def test_a_context_is_entered_afresh_for_each_call(alone: Shop) -> None:
    worker = alone.declare()
    worker.service(Surrounded)
    worker.service(SurroundedThread)
    async with alone.worker(worker):
        for kind, made in (("surrounded", ["made"]), ("surrounded-thread", [])):
            course.clear()
            id = await alone.services.start(kind)
            await eventually(lambda: "started" in course)
            await alone.services.stop(id)
            await eventually(alone.is_state(id, "STOPPED"))
            begun = ["in", *made, "out", "in", "started"]
            assert course[: len(begun)] == begun
            # What has begun may end before or after it was stopped.
            assert sorted(course[len(begun) :]) == ["in", "out", "out", "stopping"]


class Stubborn(Service):
    """Catches what it can, and has a ``stop`` that fails."""

    name = "stubborn"

    def start(self, ctx: BlockingContext) -> None:
        course.append(self.name)
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                course.append("caught")

    def stop(self) -> None:
        raise RuntimeError("no")


class Deaf(Service):
    """Does not hear of a cancellation once."""

    name = "deaf"

    async def start(self, ctx: Context) -> None:
        course.append(self.name)
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)


@pytest.mark.row("P22")
async def test_a_service_that_does_not_end_is_interrupted(alone: Shop) -> None:
    course.clear()
    seen: list[BaseException] = []
    worker = alone.declare(grace_s=0.2)
    worker.service(Stubborn)
    worker.service(Deaf)
    worker.on_exception(seen.append)
    async with alone.worker(worker):
        for kind in ("stubborn", "deaf"):
            id = await alone.services.start(kind)
            await eventually(partial(contains, course, kind))
            await alone.services.stop(id)
            await eventually(alone.is_state(id, "STOPPED"))
    assert [str(one) for one in seen] == ["no"]
    assert "caught" not in course


class Late(Service):
    """Has a ``stop`` that waits for something in vain, for a time of its own."""

    name = "late"

    async def start(self, ctx: Context) -> None:
        await asyncio.sleep(60)

    async def stop(self) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)


async def test_a_stop_that_raises_its_own_timeout_is_logged(alone: Shop) -> None:
    seen: list[BaseException] = []
    worker = alone.declare(grace_s=0.2)
    worker.service(Late)
    worker.on_exception(seen.append)
    async with alone.worker(worker):
        id = await alone.services.start("late")
        await eventually(alone.is_state(id, "RUNNING"))
        await alone.services.stop(id)
        await eventually(alone.is_state(id, "STOPPED"))
    assert [type(one) for one in seen] == [TimeoutError]


class Still(Service):
    """Runs on although it is asked to stop, for as long as the test says."""

    name = "still"
    go_on = True
    copies = 0
    refused: str | None = None

    async def start(self, ctx: Context) -> None:
        Still.copies += 1
        try:
            while Still.go_on:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            while ctx.stopping and Still.refused is None:
                # It is interrupted again and again, and on a busy machine within this call.
                with contextlib.suppress(asyncio.CancelledError):
                    try:
                        await ctx.emit("late")
                        break
                    except LeaseLost as error:
                        Still.refused = str(error)
        finally:
            Still.copies -= 1


@pytest.mark.row("P32")
async def test_a_copy_that_still_stops_is_never_joined_by_another(alone: Shop) -> None:
    worker = alone.declare(lease_s=LEASE_S, grace_s=0.1)
    worker.service(Still)
    Still.go_on, Still.refused = True, None
    id = await alone.services.start("still")
    async with alone.worker(worker):
        try:
            await eventually(lambda: Still.copies == 1)
            # As if another worker had taken it, and died.
            key = alone.services.keys.of(id)
            alone.raw.hset(key, "token", "1")
            alone.raw.zadd(alone.services.keys.leases, {id: 1})
            await eventually(lambda: alone.raw.hget(key, "token") != b"1")
            # The time in which the instance that was given out now would begin, if it did not wait:
            # nothing tells that something has not happened.
            await asyncio.sleep(0.3)
            assert Still.copies == 1
        finally:
            Still.go_on = False
        await eventually(lambda: Still.refused is not None)
        await eventually(alone.is_state(id, None))


@pytest.mark.row("P33")
@pytest.mark.row("P42")
async def test_local_services_run_in_each_worker_and_are_removed_with_it(place: Shop) -> None:
    one, other = place.declare(), place.declare()
    ids = {one.start_local("beat"), other.start_local("beat", pace=2)}
    async with place.worker(one), place.worker(other):
        await eventually(lambda: all(place.has_ticked(id) for id in ids))
        third = one.start_local("beat")
        await eventually(lambda: place.has_ticked(third))
        found = await place.services.get(third)
        assert found is not None
        assert found.local
        assert place.waiting == []
    assert [await place.services.get(id) for id in (*ids, third)] == [None] * 3
    assert place.raw.scard(place.services.keys.known) == 0


async def test_services_run_beside_a_worker(dsn: str, redis_url: str) -> None:
    redis = RedisPlugin(url=redis_url, prefix="t:")
    redis.services.service(Beat)
    raw = connect_notes(redis_url, cluster=False)
    try:
        async with Chancy(dsn, plugins=[redis]) as chancy:
            id = await redis.services.start("beat")
            async with Worker(chancy):
                await eventually(lambda: raw.llen(f"ticks:{id}") > 3)
        found = await redis.services.get(id)
        assert found is not None
        assert found.state == "WAIT"
    finally:
        redis.services.close()
        raw.close()
