"""How long it takes until others have what a worker has had, with real processes and signals."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.redis.streams.crew import Crew
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.support.waiting import eventually

#: Seconds for which what is ready may wait for a processor of a busy machine.
SLACK_S = 0.8


@asynccontextmanager
async def working(place: dict[str, Any], workers: int, **options: Any) -> AsyncGenerator[Crew]:
    """A crew whose workers have equal shares."""
    made = Crew(**place, **options)
    try:
        for _ in range(workers):
            made.start()
        await eventually(partial(made.share, workers))
        yield made
    finally:
        await made.close()


@pytest.mark.row("R25")
async def test_others_have_the_partitions_of_a_worker_that_ends_long_before_its_lease_does(
    place: dict[str, Any],
) -> None:
    """Within two looks at the plan, of the defaults: 4 s, and of the lease 30 s are left."""
    async with working(place, 2, lease_s=30.0, check_s=2.0, grace_s=8.0) as crew:
        await crew.send(600)
        began = time.monotonic()
        crew.processes[0].send_signal(signal.SIGTERM)
        await eventually(partial(crew.share, 1))
        took_s = time.monotonic() - began
        assert took_s < 2 * 2.0 + SLACK_S, took_s
        await eventually(crew.complete)
        assert await asyncio.to_thread(crew.processes[0].wait, 10) == 0


@pytest.mark.row("R15")
async def test_a_batch_that_waits_to_be_filled_ends_with_its_partition(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing more comes that would wake it; what it had comes again where the partition goes."""

    async def patiently(worker: int, events: Events[Order]) -> None:
        async for batch in events.records().take(2, within=30.0):
            for order in batch:
                crew.note(worker, events, order)

    options = {"grace_s": 30.0, "lease_s": 60.0}
    async with fleet(redis_url, partitions=8, handler=patiently, options=options) as crew:
        first = await crew.start()
        await crew.send(0, 8, keys=8)
        await eventually(crew.settled)
        lanes = first.executor.runner.partitions
        await eventually(lambda: [len(lane.buffer) for lane in lanes] == [1] * 8)
        joined = await crew.start()
        await eventually(lambda: crew.settled() and len(joined.owned) == 4, timeout=10)
        assert crew.seen == []
        await crew.send(8, 8, keys=8)
        await eventually(lambda: sorted(crew.numbers) == list(range(16)))
        assert crew.out_of_order() == []
        assert "processor_interrupted" not in caplog.text
