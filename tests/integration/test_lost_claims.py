"""Claims whose answers were lost, of queues that the worker does not serve any more."""

from __future__ import annotations

from typing import Any

import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.errors import BrokerUnavailable
from chancy.postgres.broker import PostgresBroker
from tests.support import jobs
from tests.support.waiting import eventually


@pytest.mark.parametrize("deleted", [True, False])
async def test_jobs_are_run_or_released_while_the_worker_continues(
    dsn: str, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """Deleted, or served in another way."""
    monkeypatch.setattr("chancy.worker.reconciler.EVERY_S", 0.2)
    # On a busy machine a single check may take so long that the next one would be 30 s later.
    monkeypatch.setattr("chancy.worker.reconciler._SHARE", 1.0)
    monkeypatch.setattr("chancy.postgres.claim.claims._UNKNOWN_FOR_S", 1.0)
    queue = Queue(name="short", executor="async")
    async with Chancy(dsn, queues=[queue]) as chancy:
        broker = chancy.control
        assert isinstance(broker, PostgresBroker)
        fetch, lost = broker._claiming.fetch, 0

        async def lose(sql: str, *parameters: Any, **options: Any) -> object:
            """Lose the first answer that has a job, after the queue has changed."""
            nonlocal lost
            found = await fetch(sql, *parameters, **options)
            if sql in (broker.sql.claim, broker.sql.claim_front) and found and not lost:
                lost = len(found)
                if deleted:
                    await chancy.delete_queue("short")
                else:
                    await chancy.declare(Queue(name="short", executor="thread"), upsert=True)
                await eventually(lambda: "short" not in worker.queues)
                raise BrokerUnavailable("the answer was lost")
            return found

        monkeypatch.setattr(broker._claiming, "fetch", lose)
        async with Worker(chancy, queues=["short"]) as worker:
            reference = await chancy.push(jobs.note.job(value=1).with_queue("short"))
            await eventually(lambda: lost)

            async def claimed_no_more() -> bool:
                return await reference.status() in (State.PENDING, State.SUCCEEDED)

            await eventually(claimed_no_more)
            if not deleted:
                await reference.wait(30)
