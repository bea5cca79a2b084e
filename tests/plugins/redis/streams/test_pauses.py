"""A processor that fails between events, again and again, as one that is done with them does."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.streams.model.policy import Halt, Ignore, RetryInPlace
from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.support.waiting import eventually


class NothingCame(Exception):
    """What a processor may raise that waits for events only for a while."""


def fickle(crew: Fleet) -> asyncio.Event:
    """Let the processors fail, with nothing at hand, each time that this is set; it is cleared."""
    failing = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        records = aiter(events.records())
        while True:
            coming = asyncio.ensure_future(anext(records, None))
            told = asyncio.create_task(failing.wait())
            await asyncio.wait([coming, told], return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                failing.clear()
                coming.cancel()
                await asyncio.wait([coming])
                raise NothingCame
            told.cancel()
            order = coming.result()
            if order is None:
                return
            crew.note(worker, events, order)

    crew.handler = handle
    return failing


async def work_and_fail(crew: Fleet, failing: asyncio.Event, times: int) -> None:
    """Each time an event comes and is done with first."""
    for number in range(times):
        await crew.send(number, 1)
        await eventually(partial(lambda one: one in crew.numbers, number))
        failing.set()
        await eventually(lambda: not failing.is_set())


@pytest.mark.row("R23")
async def test_failures_with_work_between_them_are_not_those_of_one_event(redis_url: str) -> None:
    options: dict[str, Any] = {"policy": RetryInPlace(times=1, base_s=0.01, then=Halt())}
    async with fleet(redis_url, partitions=1, options=options) as crew:
        failing = fickle(crew)
        worker = await crew.start()
        await work_and_fail(crew, failing, 4)
        await crew.send(4, 1)
        await eventually(lambda: crew.numbers == [0, 1, 2, 3, 4])
        assert not worker.executor.runner.halted
        # Without any work between them they are.
        for _ in range(2):
            failing.set()
            await eventually(lambda: not failing.is_set())
        await eventually(lambda: worker.executor.runner.halted)


@pytest.mark.row("R23")
async def test_pauses_do_not_grow_while_work_is_done_between_them(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(redis_url, partitions=1, options={"policy": Ignore()}) as crew:
        failing = fickle(crew)
        await crew.start()
        await work_and_fail(crew, failing, 6)
        pauses = [float(found) for found in re.findall(r"next_try_s=([\d.]+)", caplog.text)]
        assert len(pauses) == 6
        assert max(pauses) <= 0.1
