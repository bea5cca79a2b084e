"""A loop that raises stops nothing else in an application."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy import Chancy, Queue
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.retry import Retries
from chancy.worker.worker import Worker
from tests.support import jobs
from tests.support.waiting import eventually

QUEUES = [
    Queue(name="near", executor="async"),
    Queue(name="far", executor="async", broker="redis"),
]
LETTERS = DeadLetters(sweep_s=0.1)


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncIterator[Chancy]:
    plugins = [RedisPlugin(url=redis_url), LETTERS, Recovery(sweep_s=0.1), Retries()]
    async with Chancy(
        dsn, queues=QUEUES, plugins=plugins, no_default_plugins=True, pool_size=4
    ) as made:
        yield made


async def test_a_loop_that_raises_does_not_end_the_others(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(upkeep: Upkeep) -> int:
        raise ValueError("a record of its own")

    monkeypatch.setattr(Upkeep, "turn", fail)
    async with Worker(chancy):
        await eventually(lambda: caplog.text.count("redis_loop_failed name=upkeep") > 1)
        failed = await chancy.push(jobs.fail.job().with_queue("far").with_max_attempts(1))

        async def filed() -> bool:
            return await LETTERS.get(chancy, failed.id) is not None

        await eventually(filed)
    assert "worker_loop_failed" not in caplog.text
