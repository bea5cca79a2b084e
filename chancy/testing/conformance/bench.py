"""Helpers of the contract tests: a broker with a queue and a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker, never
from chancy.broker.values import PreparedJob, WorkerRecord
from chancy.job.definition import QueuedJob
from chancy.job.ids import new_id
from chancy.queue.queue import Queue
from chancy.states import State

PAST = datetime(2001, 1, 1, tzinfo=UTC)
FUTURE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def prepared(*, job_id: UUID | None = None, **fields: Any) -> PreparedJob:
    """A job for `Broker.push`, with the given fields."""
    job = PreparedJob(
        id=job_id or new_id(),
        queue="default",
        priority=0,
        func="shop.jobs.work",
        arguments="{}",
        run_at=None,
        delay_s=None,
        max_attempts=3,
        meta=None,
    )
    return job._replace(**fields)


def record(worker_id: UUID | None = None, *, host: str = "host", pid: int = 1) -> WorkerRecord:
    return WorkerRecord(
        id=worker_id or uuid.uuid4(),
        host=host,
        pid=pid,
        tags=frozenset({"gpu", host}),
        queues=("default", "other"),
        version="0.1.0",
    )


def settlement(claim: Claim, state: State) -> Settlement:
    """A minimal settlement of an attempt; extend it by ``_replace``."""
    return Settlement(claim.id, claim.lease, state)


@dataclass(slots=True)
class Bench:
    """A broker with one declared queue, ``default``, and one registered worker."""

    broker: Broker
    worker_id: UUID = field(default_factory=uuid.uuid4)

    async def prepare(self, *queues: Queue) -> None:
        for queue in queues or (Queue(name="default"),):
            await self.broker.declare(queue)
        await self.broker.register(record(self.worker_id))

    async def push(self, *jobs: PreparedJob) -> list[UUID]:
        await self.broker.push(jobs)
        return [job.id for job in jobs]

    async def claim(
        self,
        limit: int = 100,
        *,
        queue: str = "default",
        thorough: bool = True,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        return await self.broker.claim(
            queue, worker_id=self.worker_id, limit=limit, thorough=thorough, knows=knows
        )

    async def running(self, *jobs: PreparedJob) -> list[Claim]:
        """Push jobs, by default one, and claim them: in push order for equal priorities.

        Without the time that each waited, which only a claim knows.
        """
        await self.push(*(jobs or (prepared(),)))
        claims = await self.claim()
        assert all(claim.waited_s is not None and claim.waited_s >= 0 for claim in claims)
        return [claim._replace(waited_s=None) for claim in claims]

    async def settle(self, *settlements: Settlement) -> frozenset[UUID]:
        return await self.broker.settle(settlements)

    async def job(self, job_id: UUID) -> QueuedJob:
        return (await self.broker.get([job_id]))[job_id]

    async def state(self, job_id: UUID) -> State | None:
        found = await self.broker.get([job_id])
        return found[job_id].state if found else None


class Promises:
    """Base class of the parts of the contract."""

    @pytest.fixture
    async def bench(self, brokers: tuple[Broker, Broker]) -> Bench:
        bench = Bench(brokers[0])
        await bench.prepare()
        return bench
