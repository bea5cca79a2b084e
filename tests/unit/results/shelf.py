"""A source of references that tells a story."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from chancy.errors import WaitTimeout
from chancy.job.definition import QueuedJob
from chancy.results.reference import Reference, result_of
from chancy.serialization.signature import Signature
from chancy.states import State
from tests.support.waiting import eventually

AT = datetime(2030, 1, 1, tzinfo=UTC)
OOPS = {"types": ["shop.Oops", "builtins.ValueError"], "message": "no", "trace": "line 1"}


def queued(
    job_id: UUID, state: State, result: object = None, *errors: Mapping[str, Any]
) -> QueuedJob:
    return QueuedJob(
        id=job_id,
        func="shop.work",
        arguments={},
        queue="default",
        priority=0,
        state=state,
        attempt=1,
        max_attempts=3,
        crashes=0,
        run_at=None,
        worker_id=None,
        meta={},
        errors=errors,
        result=result,
        pushed_at=AT,
        claimed_at=None,
        finished_at=AT if state.final else None,
        stop_asked_at=None,
        limits=(),
    )


class Shelf:
    """Jobs that end when a test says so."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, QueuedJob] = {}
        self.waits: dict[UUID, asyncio.Future[QueuedJob]] = {}
        self.begun: list[Future[QueuedJob]] = []
        self.signatures: dict[str, Signature] = {}

    def reference(self) -> Reference[Any]:
        return Reference(uuid.uuid4(), self)

    def end(
        self, reference: Reference[Any], state: State, result: object = None, *errors: Any
    ) -> None:
        job = queued(reference.id, state, result, *errors)
        self.jobs[reference.id] = job
        if reference.id in self.waits:
            self.waits[reference.id].set_result(job)

    async def waited_for(self, reference: Reference[Any]) -> None:
        await eventually(lambda: reference.id in self.waits)

    async def get_job(self, id: UUID) -> QueuedJob | None:
        return self.jobs.get(id)

    async def wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob:
        if id in self.jobs:
            return self.jobs[id]
        if timeout_s == 0:
            raise WaitTimeout("not yet")
        self.waits[id] = asyncio.get_running_loop().create_future()
        return await self.waits[id]

    def sync_get_job(self, id: UUID) -> QueuedJob | None:
        return self.jobs.get(id)

    def sync_wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob:
        return self.jobs[id]

    def sync_begin_wait(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        begun: Future[QueuedJob] = Future()
        if id in self.jobs:
            begun.set_result(self.jobs[id])
        elif timeout_s == 0:
            begun.set_exception(WaitTimeout("not yet"))
        self.begun.append(begun)
        return begun

    def sync_end(self, at: int, reference: Reference[Any], state: State, result: object) -> None:
        """End the job that the wait at this place is for."""
        self.end(reference, state, result, OOPS)
        self.begun[at].set_result(self.jobs[reference.id])

    def read_result(self, job: QueuedJob) -> Any:
        return result_of(job, self.signatures.get(job.func))
