"""Contract tests of queues."""

from __future__ import annotations

import pytest

from chancy.job.limits import Limit
from chancy.queue.executor_options import (
    AsyncOptions,
    ExecutorOptions,
    ProcessOptions,
    ThreadOptions,
)
from chancy.queue.queue import Queue
from chancy.testing.conformance.bench import FUTURE, PAST, Bench, Promises, prepared

FULL = Queue(
    name="full",
    executor="thread",
    concurrency=7,
    tags=frozenset({"gpu", "eu-.*", "*"}),
    poll_interval_s=0.25,
    keep_finished=False,
    limits=(Limit.time(2.5),),
    options=ThreadOptions(cooperative=True),
)


class QueuePromises(Promises):
    async def test_a_queue_is_stored_as_declared(self, bench: Bench) -> None:
        assert await bench.broker.declare(FULL) == FULL
        assert await bench.broker.queues() == [Queue(name="default"), FULL]

    @pytest.mark.parametrize(
        "options",
        [
            None,
            ProcessOptions(),
            ProcessOptions(
                max_jobs=2**53,
                max_memory_bytes=2**40,
                initializer="shop.start.warm",
                grace_s=0.25,
                weight=100,
            ),
        ],
    )
    async def test_limits_and_options_come_back_as_they_were(
        self, bench: Bench, options: ExecutorOptions | None
    ) -> None:
        limits = (Limit.time(0.001), Limit.memory(2**62))
        queue = Queue(name="bounded", limits=limits, options=options)
        assert await bench.broker.declare(queue) == queue
        assert queue in await bench.broker.queues()
        other = Queue(name="bounded", executor="async", options=AsyncOptions(grace_s=1))
        assert await bench.broker.declare(other) == queue
        assert await bench.broker.declare(other, upsert=True) == other
        plain = Queue(name="bounded")
        assert await bench.broker.declare(plain, upsert=True) == plain

    async def test_a_queue_may_be_declared_paused(self, bench: Bench) -> None:
        paused = Queue(name="paused", paused=True, resume_at=FUTURE)
        assert await bench.broker.declare(paused) == paused
        await bench.push(prepared(queue="paused"))
        assert await bench.claim(queue="paused") == []

    async def test_declaring_again_leaves_the_settings(self, bench: Bench) -> None:
        await bench.broker.declare(FULL)
        assert await bench.broker.declare(Queue(name="full", concurrency=1)) == FULL
        assert FULL in await bench.broker.queues()

    async def test_upsert_stores_the_settings(self, bench: Bench) -> None:
        await bench.broker.declare(FULL)
        changed = Queue(name="full", executor="async", concurrency=None)
        assert await bench.broker.declare(changed, upsert=True) == changed
        assert changed in await bench.broker.queues()

    async def test_upsert_stores_a_new_queue(self, bench: Bench) -> None:
        assert await bench.broker.declare(FULL, upsert=True) == FULL

    async def test_neither_way_of_declaring_changes_pausing(self, bench: Bench) -> None:
        await bench.broker.pause("default", resume_at=FUTURE)
        for upsert in (False, True):
            stands = await bench.broker.declare(Queue(name="default"), upsert=upsert)
            assert (stands.paused, stands.resume_at) == (True, FUTURE)
        await bench.broker.resume("default")
        stands = await bench.broker.declare(Queue(name="default", paused=True), upsert=True)
        assert (stands.paused, stands.resume_at) == (False, None)

    async def test_pause_and_resume_are_seen(self, bench: Bench) -> None:
        assert await bench.broker.pause("default") is True
        assert await self._pausing(bench) == (True, None)
        assert await bench.broker.pause("default", resume_at=FUTURE) is True
        assert await self._pausing(bench) == (True, FUTURE)
        assert await bench.broker.pause("default") is True
        assert await self._pausing(bench) == (True, None)
        assert await bench.broker.resume("default") is True
        assert await self._pausing(bench) == (False, None)

    async def test_a_queue_is_not_paused_after_its_resume_time(self, bench: Bench) -> None:
        await bench.broker.pause("default", resume_at=PAST)
        [queue] = await bench.broker.queues()
        assert queue.paused is False

    async def _pausing(self, bench: Bench) -> tuple[bool, object]:
        [queue] = await bench.broker.queues()
        return queue.paused, queue.resume_at

    async def test_calls_about_an_unknown_queue_return_false(self, bench: Bench) -> None:
        assert await bench.broker.pause("nobody", resume_at=PAST) is False
        assert await bench.broker.resume("nobody") is False
        assert await bench.broker.delete_queue("nobody") is False
        assert [queue.name for queue in await bench.broker.queues()] == ["default"]

    async def test_queues_are_sorted_by_name(self, bench: Bench) -> None:
        for name in ("b", "z", "0", "a"):
            await bench.broker.declare(Queue(name=name))
        names = [queue.name for queue in await bench.broker.queues()]
        assert names == sorted(names)
        for name in ("b", "unknown"):
            found = [queue.name for queue in await bench.broker.queues(name)]
            assert found == [known for known in names if known == name]

    async def test_the_jobs_of_a_deleted_queue_stay(self, bench: Bench) -> None:
        [job_id] = await bench.push(prepared())
        assert await bench.broker.delete_queue("default") is True
        assert await bench.broker.queues() == []
        assert (await bench.broker.counts())["default"].pending == 1
        await bench.broker.declare(Queue(name="default"))
        assert [claim.id for claim in await bench.claim()] == [job_id]
