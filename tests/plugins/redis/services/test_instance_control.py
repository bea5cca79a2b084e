"""How an instance handles requests, without Redis."""

from __future__ import annotations

import asyncio
import time

import pytest

from chancy.plugins.redis.services import Context, Service
from chancy.plugins.redis.services.base import ServiceState, Stopping
from chancy.plugins.redis.services.instance import Instance
from chancy.plugins.redis.services.leases import Ending, Taken
from tests.support.waiting import eventually

begun: list[int] = []


class Numbered(Service):
    name = "numbered"

    async def start(self, ctx: Context) -> None:
        begun.append(ctx.data["n"])
        await ctx.wait(60)

    async def stop(self) -> None: ...


class Desk:
    """Answers each obeyed wish by a reload with the next number, and the last by a stop."""

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
    # The answer to a renewal that had been on its way meanwhile.
    instance.request("reload", early)
    await eventually(lambda: store.asked == ["id"])
    assert begun == [1, 2]
    instance.request("stop", time.monotonic())
    await asyncio.wait_for(living, 5)
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
        # It takes time: that is what is taken off.
        await asyncio.sleep(next(works))
        if len(waits) == 2:
            stopping.flag.set()

    await Noting("id", 1, {}, stopping, _unheard).every(0.4, work)
    assert 0 < max(waits[:2]) <= 0.35
    assert waits[2] == 0, "one that takes longer puts off the next"
