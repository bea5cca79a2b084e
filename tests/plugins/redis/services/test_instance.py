"""One instance of a service: how it runs, stops and restarts, and that it is the only one."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Generator
from functools import partial
from operator import contains
from typing import Any

import pytest

from chancy.app.app import Chancy
from chancy.errors import LeaseLost
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services import BlockingContext, Context, NoService, Service
from chancy.plugins.redis.services.base import ServiceState, Stopping
from chancy.plugins.redis.services.instance import Instance
from chancy.plugins.redis.services.leases import Ending, Leases, Taken
from chancy.plugins.redis.services.settings import notify_handlers
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
            # ``start`` may end before or after ``stop``.
            assert sorted(course[len(begun) :]) == ["in", "out", "out", "stopping"]


class Stubborn(Service):
    """Catches every `Exception`, and has a ``stop`` that fails."""

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
    """Suppresses the first cancellation."""

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
    """Has a ``stop`` with a timeout of its own, which expires."""

    name = "late"

    async def start(self, ctx: Context) -> None:
        await asyncio.sleep(60)

    async def stop(self) -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)


def test_a_handler_of_exceptions_that_interrupts_prevents_no_other() -> None:
    def interrupt(error: BaseException) -> None:
        raise KeyboardInterrupt

    seen: list[BaseException] = []
    error = ValueError()
    notify_handlers([interrupt, seen.append], error)
    assert seen == [error]


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


class Cancelling(Service):
    """Has a ``stop`` that cancels and awaits a task, or exits."""

    name = "cancelling"

    async def start(self, ctx: Context) -> None:
        self._raises = ctx.data["raises"]
        self._part = asyncio.create_task(asyncio.sleep(60))
        course.append(self.name)
        try:
            await asyncio.sleep(60)
        finally:
            course.append("ended")

    async def stop(self) -> None:
        self._part.cancel()
        if self._raises:
            raise getattr(builtins, self._raises)(3)
        await self._part


@pytest.mark.row("P22", "P32")
@pytest.mark.parametrize("raises", [None, "SystemExit", "KeyboardInterrupt", "BaseException"])
async def test_a_stop_that_raises_any_error_leaves_no_copy_running(
    alone: Shop, raises: str | None
) -> None:
    course.clear()
    seen: list[BaseException] = []
    worker = alone.declare(grace_s=0.2)
    worker.service(Cancelling)
    worker.on_exception(seen.append)
    async with alone.worker(worker):
        id = await alone.services.start("cancelling", raises=raises)
        await eventually(lambda: course == ["cancelling"])
        await alone.services.stop(id)
        await eventually(alone.is_state(id, "STOPPED"))
        assert course == ["cancelling", "ended"]
    assert [type(one).__name__ for one in seen] == [raises or "CancelledError"]


class Still(Service):
    """Continues after the stop request until the test ends it."""

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
                # It is interrupted repeatedly, on a busy machine also within this call.
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
            # As if another worker had claimed it and died.
            key = alone.services.keys.of(id)
            alone.raw.hset(key, "token", "1")
            alone.raw.zadd(alone.services.keys.leases, {id: 1})
            await eventually(lambda: alone.raw.hget(key, "token") != b"1")
            # The time in which the instance of the new lease would begin if it did not wait: there
            # is no condition to await.
            await asyncio.sleep(0.3)
            assert Still.copies == 1
        finally:
            Still.go_on = False
        await eventually(lambda: Still.refused is not None)
        await eventually(alone.is_state(id, None))


class Unending(Service):
    """Ignores each cancellation in ``start``, and also in ``stop``, until the test ends it."""

    name = "unending"
    go_on = True

    async def start(self, ctx: Context) -> None:
        self._in_stop = ctx.data["in_stop"]
        await self._ignore()

    async def stop(self) -> None:
        if self._in_stop:
            await self._ignore()

    async def _ignore(self) -> None:
        while Unending.go_on:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("in_stop", [False, True])
async def test_a_worker_ends_without_a_service_that_never_ends(
    alone: Shop, caplog: pytest.LogCaptureFixture, in_stop: bool
) -> None:
    worker = alone.declare(lease_s=LEASE_S, grace_s=0.1)
    worker.service(Unending)
    Unending.go_on = True
    id = await alone.services.start("unending", in_stop=in_stop)
    try:
        async with alone.worker(worker):
            await eventually(alone.is_state(id, "RUNNING"))
        assert f"service_left_running service={id}" in caplog.text
        # asyncio.run would wait for them.
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if id in name]
    finally:
        Unending.go_on = False


@pytest.mark.row("P33", "P42")
async def test_local_services_run_in_each_worker_and_are_removed_with_it(place: Shop) -> None:
    one, other = place.declare(), place.declare()
    ids = {one.start_local("beat"), other.start_local("beat", pace=2)}
    async with place.worker(one), place.worker(other):
        await eventually(lambda: all(place.has_ticked(id) for id in ids))
        third = one.start_local("beat")
        await eventually(lambda: place.has_ticked(third))
        found = await place.found(third)
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


begun: list[int] = []


class Numbered(Service):
    name = "numbered"

    async def start(self, ctx: Context) -> None:
        begun.append(ctx.data["n"])
        await ctx.wait(60)

    async def stop(self) -> None: ...


class Desk:
    """A store whose requests are reloads with the next number, and at last a stop."""

    def __init__(self) -> None:
        self.answers: list[tuple[Ending, str, str]] = [
            ("reload", "numbered", '{"n":2}'),
            ("STOPPED", "", ""),
        ]
        self.asked: list[str] = []
        self.released: list[str] = []

    async def apply_request(self, taken: Taken) -> tuple[Ending, str, str]:
        return self.answers.pop(0)

    async def finish(
        self, taken: Taken, state: ServiceState, output: str, event: str, *, patient: bool
    ) -> bool | None:
        raise AssertionError("it does not end by itself")

    async def release(self, taken: Taken, *, patient: bool) -> str:
        self.released.append(taken.id)
        return "WAIT"

    async def emit(self, taken: Taken, event: str, data: object) -> None: ...
    def emit_now(self, taken: Taken, event: str, data: object) -> None: ...
    def check_soon(self, id: str) -> None:
        self.asked.append(id)

    def failed(self, error: BaseException) -> None: ...


async def test_a_wish_that_was_asked_for_before_the_last_one_was_obeyed_is_asked_again() -> None:
    begun.clear()
    store = Desk()
    taken = Taken("id", "7", "numbered", '{"n":1}')
    instance = Instance(taken, {"numbered": Numbered}, store, grace_s=1.0)
    living = asyncio.create_task(instance.serve())
    await eventually(lambda: begun == [1])
    early = time.monotonic()
    instance.request("reload", early)
    await eventually(lambda: begun == [1, 2])
    # The reply to a renewal that was sent before.
    instance.request("reload", early)
    await eventually(lambda: store.asked == ["id"])
    assert begun == [1, 2]
    instance.request("stop", time.monotonic())
    await asyncio.wait_for(living, 30)
    assert (begun, store.answers, store.released) == ([1, 2], [], [])


async def test_a_copy_that_is_lost_before_it_begins_never_begins() -> None:
    begun.clear()
    store = Desk()
    instance = Instance(
        Taken("id", "7", "numbered", '{"n":1}'), {"numbered": Numbered}, store, grace_s=1.0
    )
    instance.give_up()
    await instance.serve()
    assert (begun, store.released, instance.was_lost) == ([], ["id"], True)


async def _unheard(event: str, data: object) -> None: ...


@pytest.mark.row("P39")
async def test_a_loop_of_an_async_service_takes_its_work_off_the_interval() -> None:
    stopping = Stopping()
    waits: list[float] = []

    class Noting(Context):
        async def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            return False

    works = iter([0.05, 0.05, 0.5])

    async def work() -> None:
        # The duration of this call is subtracted from the interval.
        await asyncio.sleep(next(works))
        if len(waits) == 2:
            stopping.flag.set()

    await Noting("id", 1, {}, stopping, _unheard).every(0.4, work)
    assert 0 < max(waits[:2]) <= 0.35
    assert waits[2] == 0, "one that takes longer puts off the next"


@pytest.mark.row("P03", "P42")
async def test_a_service_that_was_started_waits(place: Shop) -> None:
    id = await place.services.start("beat", pace=3)
    found = await place.found(id)
    assert (found.state, found.name, found.data) == ("WAIT", "beat", {"pace": 3})
    assert place.waiting == [id]
    assert (await place.services.list()).new == [id]


@pytest.mark.row("P01", "P11", "P42")
async def test_the_return_value_is_stored_as_json(place: Shop) -> None:
    values: list[Any] = [None, {"a": [1, None]}, "text", 0, "7"]
    ids = [await place.services.start("give", cleanup=False, value=value) for value in values]
    async with place.worker():
        for id in ids:
            await eventually(place.is_state(id, "SUCCESS"))
    for id, value in zip(ids, values, strict=True):
        found = await place.found(id)
        assert found.output == value
        raw = place.raw.hget(place.services.keys.of(id), "output")
        assert json.loads(raw) == value


@pytest.mark.row("P10", "P22", "P42")
async def test_a_running_service_is_stopped(place: Shop) -> None:
    id = await place.services.start("beat")
    async with place.worker():
        await eventually(lambda: len(place.ticks(id)) > 3)
        found = await place.found(id)
        assert found.state == "RUNNING"
        assert found.last_update
        assert id in (await place.services.list()).active
        assert await place.services.stop(id) == "RUNNING"
        await eventually(place.is_state(id, "STOPPED"))
        seen = len(place.ticks(id))
        # Ten ticks of a service that continues.
        await asyncio.sleep(0.1)
        assert len(place.ticks(id)) == seen
        listed = await place.services.list()
        assert (listed.new, listed.active, listed.ended) == ([], [id], [])


@pytest.mark.row("P24", "P42")
async def test_a_reload_runs_it_again_with_the_data_that_it_has_by_then(place: Shop) -> None:
    id = await place.services.start("beat", pace=1)
    async with place.worker():
        await eventually(lambda: place.notes(id) == ["begin 1"])
        await place.services.set(id, pace=2)
        await place.services.reload(id)
        await eventually(lambda: place.notes(id) == ["begin 1", "begin 2"])
        assert await place.state(id) == "RUNNING"
        # For the reply to a renewal that was sent before: the request is not carried out twice.
        await asyncio.sleep(0.1)
        assert place.notes(id) == ["begin 1", "begin 2"]


@pytest.mark.row("P33", "P42")
async def test_a_restart_starts_a_local_service_again_in_place(place: Shop) -> None:
    worker = place.declare()
    id = worker.start_local("beat")
    async with place.worker(worker):
        await eventually(lambda: place.has_ticked(id))
        for times in (2, 3):
            await place.services.restart(id)
            await eventually(partial(_has_begun, place, id, times))
        found = await place.found(id)
        assert (found.state, found.local, place.waiting) == ("RUNNING", True, [])


def _has_begun(place: Shop, id: str, times: int) -> bool:
    return place.notes(f"course:{id}").count("begin") == times


@pytest.mark.row("P31")
async def test_a_local_service_that_has_ended_is_restarted_by_no_worker(alone: Shop) -> None:
    worker = alone.declare(cleanup=False)
    id = worker.start_local("give", value=1)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, "SUCCESS"))
        with pytest.raises(NoService):
            await alone.services.restart(id)
        assert alone.waiting == []
        assert (await alone.services.list()).ended == [id]


@pytest.mark.row("P31")
async def test_a_local_service_that_ends_as_a_restart_is_on_its_way_is_no_common_one(
    alone: Shop,
) -> None:
    leases = Leases(alone.services.link, "mine", LEASE_S)
    taken = leases.claim_local("here", "give", "{}")
    assert taken is not None
    await alone.services.restart("here")
    assert leases.finish("here", taken.token, "SUCCESS", "1", '{"event":"success","data":1}')
    assert alone.waiting == []
    assert (await alone.services.list()).ended == ["here"]


@pytest.mark.row("P31")
async def test_local_services_of_a_lost_worker_are_not_queued(alone: Shop) -> None:
    keys = alone.services.keys
    assert Leases(alone.services.link, "gone", LEASE_S).claim_local("here", "give", "{}")
    alone.raw.zadd(keys.leases, {"here": 1})
    other = Leases(alone.services.link, "other", LEASE_S)
    assert list(other.sweep(keep_s=60.0, adopt_s=60.0).over) == [("here", "removed")]
    assert not alone.raw.exists(keys.of("here"), keys.waiting, keys.leases, keys.known)
